//! The learning curve as a picture: loss and accuracy over the epochs, in SVG.

use super::words::Epoch;
use std::fmt::Write;

const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 400.0;
/// Room for the numbers on each side.
const MARGIN: f64 = 56.0;
const LINES: u32 = 5;

/// The picture of these epochs.
pub(super) fn draw(epochs: &[Epoch], title: &str) -> String {
    let last = epochs.last().map_or(1, |epoch| epoch.number).max(1);
    let loss_max = epochs.iter().map(|epoch| epoch.loss).fold(0.0, f64::max).max(1e-9);
    let x = |number: u32| MARGIN + (WIDTH - 2.0 * MARGIN) * f64::from(number) / f64::from(last);
    let y = |share: f64| HEIGHT - MARGIN - (HEIGHT - 2.0 * MARGIN) * share.clamp(0.0, 1.0);
    let points = |share: &dyn Fn(&Epoch) -> f64| {
        let points = epochs.iter().map(|epoch| format!("{:.1},{:.1}", x(epoch.number), y(share(epoch))));
        points.collect::<Vec<_>>().join(" ")
    };
    let mut svg = String::new();
    // Writing to a string cannot fail.
    let _ = write!(
        svg,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" font-family=\"sans-serif\" \
         font-size=\"12\"><rect width=\"100%\" height=\"100%\" fill=\"white\"/><text x=\"{}\" y=\"28\" \
         font-size=\"15\" \
         text-anchor=\"middle\">{}</text>",
        WIDTH / 2.0,
        escaped(title)
    );
    for step in 0..=LINES {
        let share = f64::from(step) / f64::from(LINES);
        let (left, right, height) = (MARGIN, WIDTH - MARGIN, y(share));
        let _ = write!(
            svg,
            "<line x1=\"{left}\" x2=\"{right}\" y1=\"{height:.1}\" y2=\"{height:.1}\" stroke=\"#ddd\"/>\
             <text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\" fill=\"#1f77b4\">{:.0} %</text>\
             <text x=\"{}\" y=\"{:.1}\" fill=\"#d62728\">{:.2}</text>",
            left - 6.0,
            height + 4.0,
            share * 100.0,
            right + 6.0,
            height + 4.0,
            share * loss_max
        );
    }
    for number in (0..=LINES).map(|step| last * step / LINES) {
        let (at, bottom) = (x(number), HEIGHT - MARGIN + 18.0);
        let _ = write!(svg, "<text x=\"{at:.1}\" y=\"{bottom}\" text-anchor=\"middle\">{number}</text>");
    }
    let curves = [("#1f77b4", points(&|epoch| epoch.accuracy)), ("#d62728", points(&|epoch| epoch.loss / loss_max))];
    for (colour, points) in curves {
        let _ = write!(svg, "<polyline fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\" points=\"{points}\"/>");
    }
    let _ = writeln!(
        svg,
        "<text x=\"{}\" y=\"{}\" text-anchor=\"middle\">epoch</text><text x=\"{MARGIN}\" y=\"44\" \
         fill=\"#1f77b4\">test accuracy</text><text x=\"{}\" y=\"44\" text-anchor=\"end\" \
         fill=\"#d62728\">loss</text></svg>",
        WIDTH / 2.0,
        HEIGHT - 12.0,
        WIDTH - MARGIN
    );
    svg
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_epoch_is_a_point_inside_the_picture() {
        let epoch = |number| Epoch {
            number,
            loss: 2.0 / f64::from(number),
            accuracy: 1.0 - 0.5 / f64::from(number),
            seconds: 1.0,
            images: 1,
            bytes: 1,
        };
        let svg = draw(&(1..=7).map(epoch).collect::<Vec<_>>(), "a < b & c");
        let lists: Vec<&str> = svg.split("points=\"").skip(1).filter_map(|rest| rest.split('"').next()).collect();
        assert_eq!(lists.len(), 2);
        for list in lists {
            let points: Vec<(f64, f64)> = list
                .split(' ')
                .map(|point| point.split_once(',').expect("two numbers"))
                .map(|(x, y)| (x.parse().expect("a number"), y.parse().expect("a number")))
                .collect();
            assert_eq!(points.len(), 7);
            assert!(points.iter().all(|(x, y)| (0.0..=WIDTH).contains(x) && (0.0..=HEIGHT).contains(y)));
        }
        assert!(svg.contains("a &lt; b &amp; c") && svg.ends_with("</svg>\n"));
    }
}
