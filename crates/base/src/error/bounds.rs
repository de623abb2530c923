//! How long an error may be, and what becomes of one that is longer.
//!
//! Every text is cut where it is put into an error, and every chain where a link is added. So there is no error that is
//! too long to be written, and a decoder may refuse whatever is longer than this: no honest node has sent it.

use super::Error;
use crate::limits;
use std::borrow::Cow;
use std::sync::Arc;

/// Longest name of an operation, group, peer, host or class.
pub(super) const NAME: usize = limits::ERROR_NAME_BYTES_MAX;

/// Longest text of what happened, or of a hint.
pub(super) const TEXT: usize = limits::ERROR_TEXT_BYTES_MAX;

/// Room for the words that say that something is left out.
pub(super) const NOTE: usize = 48;

/// Returns the text, or its beginning and how much is left out.
pub(super) fn cut(text: impl Into<Cow<'static, str>>, bytes_max: usize) -> Cow<'static, str> {
    let mut text = text.into();
    if text.len() > bytes_max {
        shorten(text.to_mut(), bytes_max);
    }
    text
}

/// Cuts a text that is too long, and has it say so.
pub(super) fn shorten(text: &mut String, bytes_max: usize) {
    if text.len() > bytes_max {
        let kept_bytes = boundary_before(text, bytes_max.saturating_sub(NOTE));
        let left_out = text.len() - kept_bytes;
        text.truncate(kept_bytes);
        text.push_str(&format!("… [{left_out} bytes left out]"));
    }
}

/// Returns the text, or its end and how much is left out: the innermost call of a traceback stands last, as do last
/// lines.
pub(super) fn end_of(text: String, bytes_max: usize) -> String {
    if text.len() <= bytes_max {
        return text;
    }
    let start = boundary_after(&text, text.len() - bytes_max.saturating_sub(NOTE));
    format!("[{start} bytes left out] …\n{}", &text[start..])
}

fn boundary_before(text: &str, at: usize) -> usize {
    (0..=at).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0)
}

fn boundary_after(text: &str, at: usize) -> usize {
    (at..text.len()).find(|at| text.is_char_boundary(*at)).unwrap_or(text.len())
}

/// Shortens a chain, the error itself first: to the first causes and the last one, with a count of those between them,
/// and to as many bytes of details as an error may carry, the last cause's first.
pub(super) fn chain(links: &mut Vec<Error>) {
    let causes = links.len().saturating_sub(1);
    if causes > limits::ERROR_CAUSES_MAX {
        let kept = limits::ERROR_CAUSES_MAX;
        let removed: u32 = links.drain(kept..causes).map(|link| link.left_out().saturating_add(1)).sum();
        if let Some(root) = links.pop() {
            let left_out = root.left_out().saturating_add(removed);
            links.push(root.with(|inner| inner.left_out = left_out));
        }
    }
    let mut room_bytes = limits::ERROR_DETAILS_BYTES_MAX;
    for link in links.iter_mut().rev() {
        let Some(detail) = &link.0.detail else { continue };
        if detail.counted_bytes() > room_bytes {
            let shorter = Arc::new(detail.within(room_bytes));
            *link = link.clone().with(|inner| inner.detail = Some(shorter));
        }
        room_bytes -= link.0.detail.as_ref().map_or(0, |detail| detail.counted_bytes()).min(room_bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_cut_between_characters_and_says_so() {
        assert_eq!(cut("short", 5), "short");
        for shift in 0..4 {
            let text = format!("{}{}", "x".repeat(shift), "🐢".repeat(100));
            let beginning = cut(text.clone(), 200);
            assert!(beginning.len() <= 200 && beginning.len() > 200 - NOTE - 4, "{}", beginning.len());
            let kept = beginning.find('…').expect("it says so");
            assert!(text.starts_with(&beginning[..kept]));
            assert!(beginning.ends_with(&format!("… [{} bytes left out]", text.len() - kept)), "{beginning}");
            let end = end_of(text.clone(), 200);
            assert!(end.len() <= 200 && end.len() > 200 - NOTE - 4, "{}", end.len());
            let (note, kept) = end.split_once('\n').expect("it says so");
            assert!(text.ends_with(kept));
            assert_eq!(note, format!("[{} bytes left out] …", text.len() - kept.len()));
        }
    }
}
