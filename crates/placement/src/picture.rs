//! A placement as a picture.

use crate::problem::Problem;
use crate::solve::Placement;
use crate::table::{Labels, Row, rows, size, verdict};
use std::fmt::Write;

/// Lengths in pixels.
const BOX_WIDTH: f64 = 190.0;
const GAP: f64 = 40.0;
const HEAD: f64 = 62.0;
const LINE: f64 = 20.0;
const COLUMNS_MAX: usize = 4;

/// Letters of a text that a box has room for.
const LETTERS_MAX: usize = 26;

/// Connections that are drawn, the strongest first.
const CONNECTIONS_MAX: usize = 300;

/// Returns an SVG: a box for each device, with bars for its memory and its work, and in it a bar for each model, as
/// long as its part of the device's memory. Lines are the strongest connections between devices.
///
/// The mark on a device's work bar is its share. Names are escaped; long ones are cut, and whole where the pointer
/// rests.
///
/// # Panics
/// If the placement is not one of this problem.
#[must_use]
pub fn picture(problem: &Problem, placement: &Placement, labels: &Labels) -> String {
    let rows = rows(problem, placement);
    let (boxes, width, height) = arranged(&rows);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
         viewBox=\"0 0 {width} {height}\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"{width}\" height=\"{height}\" fill=\"#ffffff\"/>\n"
    );
    // Behind the boxes, so that texts can be read.
    connections(&mut svg, problem, placement, &rows, &boxes);
    for (device, (row, &(left, top, height))) in rows.iter().zip(&boxes).enumerate() {
        let _ = writeln!(
            svg,
            "<rect x=\"{left}\" y=\"{top}\" width=\"{BOX_WIDTH}\" height=\"{height}\" rx=\"6\" fill=\"#f4f6f8\" \
             stroke=\"#5b6770\"/>"
        );
        head(&mut svg, problem, row, &labels.device(device), device, (left, top));
        for (place, &model) in row.models.iter().enumerate() {
            let part = part(problem.model_bytes[model], problem.device_bytes[device]);
            let text = format!("{} · {}", labels.model(model), size(problem.model_bytes[model]));
            bar(&mut svg, &text, part, "#a9cbe8", (left + 8.0, line_top(top, place)));
        }
    }
    let _ = writeln!(svg, "<text x=\"{GAP}\" y=\"{}\">{}</text>\n</svg>", height - 14.0, escaped(&verdict(placement)));
    svg
}

/// Where each device's box is and how high it is, and the size of the whole.
fn arranged(rows: &[Row]) -> (Vec<(f64, f64, f64)>, f64, f64) {
    let height = |row: &Row| HEAD + LINE * row.models.len().max(1) as f64 + 8.0;
    let mut boxes = Vec::with_capacity(rows.len());
    let mut top = GAP / 2.0;
    for line in rows.chunks(COLUMNS_MAX) {
        for (column, row) in line.iter().enumerate() {
            boxes.push((GAP + column as f64 * (BOX_WIDTH + GAP), top, height(row)));
        }
        top += line.iter().map(height).fold(0.0, f64::max) + GAP;
    }
    (boxes, GAP + rows.len().min(COLUMNS_MAX) as f64 * (BOX_WIDTH + GAP), top + 20.0)
}

fn line_top(top: f64, place: usize) -> f64 {
    top + HEAD + LINE * place as f64
}

fn part(bytes: u64, of: u64) -> f64 {
    if of == 0 { 0.0 } else { bytes as f64 / of as f64 }
}

/// A device's name, memory and work.
fn head(svg: &mut String, problem: &Problem, row: &Row, name: &str, device: usize, (left, top): (f64, f64)) {
    let _ = writeln!(svg, "<text x=\"{}\" y=\"{}\" font-weight=\"bold\">{}</text>", left + 8.0, top + 16.0, cut(name));
    let capacity = problem.device_bytes[device];
    let memory = format!("{} of {}", size(row.bytes), size(capacity));
    bar(svg, &memory, part(row.bytes, capacity), "#b7dfb9", (left + 8.0, top + 21.0));
    let work = format!("work {:.0} % of {:.0} %", 100.0 * row.work, 100.0 * row.share);
    bar(svg, &work, row.work, "#f2d49b", (left + 8.0, top + 41.0));
    let mark = left + 8.0 + row.share * (BOX_WIDTH - 16.0);
    let (from, to) = (top + 41.0, top + 58.0);
    let _ = writeln!(svg, "<path d=\"M{mark:.1} {from}V{to}\" stroke=\"#8a5a00\" stroke-width=\"2\"/>");
}

/// A bar, filled to a part of it, with a text on it.
fn bar(svg: &mut String, text: &str, part: f64, colour: &str, (left, top): (f64, f64)) {
    let (width, height) = (BOX_WIDTH - 16.0, LINE - 3.0);
    let filled = width * part.clamp(0.0, 1.0);
    let _ = writeln!(
        svg,
        "<g><title>{}</title><rect x=\"{left}\" y=\"{top}\" width=\"{width}\" height=\"{height}\" fill=\"#ffffff\"/>\
         <rect x=\"{left}\" y=\"{top}\" width=\"{filled:.1}\" height=\"{height}\" fill=\"{colour}\"/>\
         <text x=\"{}\" y=\"{}\">{}</text></g>",
        escaped(text),
        left + 4.0,
        top + 13.0,
        cut(text),
    );
}

/// Lines between models on different devices, as wide as their connection is strong.
fn connections(svg: &mut String, problem: &Problem, placement: &Placement, rows: &[Row], boxes: &[(f64, f64, f64)]) {
    let models = placement.device_of.len();
    let mut places = vec![0; models];
    rows.iter().for_each(|row| row.models.iter().enumerate().for_each(|(place, &model)| places[model] = place));
    let amount = |one: usize, other: usize| {
        problem.connections[one * models + other] + problem.connections[other * models + one]
    };
    let pairs = (0..models).flat_map(|one| (0..one).map(move |other| (one, other)));
    let is_apart = |&(one, other): &(usize, usize)| placement.device_of[one] != placement.device_of[other];
    let mut drawn: Vec<_> = pairs.filter(is_apart).map(|(one, other)| (amount(one, other), one, other)).collect();
    drawn.retain(|connection| connection.0 > 0.0);
    drawn.sort_by(|one, other| other.0.total_cmp(&one.0).then((one.1, one.2).cmp(&(other.1, other.2))));
    let strongest = drawn.first().map_or(1.0, |connection| connection.0);
    for &(amount, one, other) in drawn.iter().take(CONNECTIONS_MAX) {
        let end = |model: usize, is_right: bool| {
            let (left, top, _) = boxes[placement.device_of[model]];
            (left + if is_right { BOX_WIDTH } else { 0.0 }, line_top(top, places[model]) + LINE / 2.0 - 2.0)
        };
        let left_of = |model: usize| boxes[placement.device_of[model]].0;
        let (one, other) = if left_of(one) <= left_of(other) { (one, other) } else { (other, one) };
        let is_below = left_of(one) == left_of(other);
        let ((x, y), (to_x, to_y)) = (end(one, true), end(other, is_below));
        let bend = GAP / 2.0;
        let bent_x = if is_below { to_x + bend } else { to_x - bend };
        let _ = writeln!(
            svg,
            "<path d=\"M{x} {y}C{} {y} {bent_x} {to_y} {to_x} {to_y}\" fill=\"none\" stroke=\"#c0392b\" \
             stroke-opacity=\"0.6\" stroke-width=\"{:.2}\"/>",
            x + bend,
            0.5 + 3.0 * amount / strongest,
        );
    }
}

/// A text that a box has room for, escaped.
fn cut(text: &str) -> String {
    if text.chars().count() <= LETTERS_MAX {
        return escaped(text);
    }
    escaped(&text.chars().take(LETTERS_MAX - 1).chain(['…']).collect::<String>())
}

/// Text in which nothing is markup, and nothing is what XML cannot hold.
fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            letter if letter.is_control() || matches!(letter, '\u{fffe}' | '\u{ffff}') => escaped.push('\u{fffd}'),
            letter => escaped.push(letter),
        }
    }
    escaped
}
