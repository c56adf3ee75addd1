//! The groups of a comparison over time and energy, as SVG: the Pareto front as a line, 95 % intervals as bars, dominated groups
//! in grey.

use std::error::Error;

use plotters::prelude::*;
use plotters::style::text_anchor::HPos;

use super::{Comparison, GroupRow};
use crate::chart::{COLOURS, FRAME, GRID, INK, PAPER, finished, letters};

const WIDTH: u32 = 760;
const HEIGHT: u32 = 460;
/// Part of the range that is left free around all points.
const FREE: f64 = 0.12;

/// Parts of the width and the height within which two names touch.
const CLOSE: (f64, f64) = (0.14, 0.06);

/// A group as a point.
struct ChartPlace<'a> {
    name: &'a str,
    seconds: f64,
    joules: f64,
    /// Halves of the intervals; 0 where there is none.
    half: (f64, f64),
    is_dominated: bool,
}

/// The picture; `None` where fewer than two groups have time and energy.
#[must_use]
pub fn svg(comparison: &Comparison, title: &str) -> Option<String> {
    let places: Vec<ChartPlace<'_>> = comparison.rows.iter().filter_map(place).collect();
    if places.len() < 2 {
        return None;
    }
    let mut text = String::new();
    draw(&places, title, &mut text).expect("a picture is drawn into memory");
    Some(finished(text, title))
}

fn place(row: &GroupRow) -> Option<ChartPlace<'_>> {
    let (seconds, joules) = (row.seconds.as_ref()?, row.joules.as_ref()?);
    Some(ChartPlace {
        name: &row.name,
        seconds: seconds.mean,
        joules: joules.mean,
        half: (seconds.half.unwrap_or_default(), joules.half.unwrap_or_default()),
        is_dominated: row.is_dominated?,
    })
}

fn draw(places: &[ChartPlace<'_>], title: &str, text: &mut String) -> Result<(), Box<dyn Error + Send + Sync>> {
    let root = SVGBackend::with_string(text, (WIDTH, HEIGHT)).into_drawing_area();
    root.fill(&PAPER)?;
    root.draw_text(title, &letters(16, &INK, HPos::Left), (16, 10))?;
    let across = range(places.iter().flat_map(|place| ends(place.seconds, place.half.0)));
    let up = range(places.iter().flat_map(|place| ends(place.joules, place.half.1)));
    let (width, height) = (across.end - across.start, up.end - up.start);
    // Whose name would lie over that of another has it below.
    let is_near = |a: &ChartPlace<'_>, b: &ChartPlace<'_>| {
        (a.seconds - b.seconds).abs() < width * CLOSE.0 && (a.joules - b.joules).abs() < height * CLOSE.1
    };
    let mut chart = ChartBuilder::on(&root)
        .margin(14)
        .margin_top(40)
        .set_label_area_size(LabelAreaPosition::Left, 70)
        .set_label_area_size(LabelAreaPosition::Bottom, 44)
        .build_cartesian_2d(across, up)?;
    chart
        .configure_mesh()
        .max_light_lines(0)
        .x_labels(8)
        .y_labels(6)
        .bold_line_style(GRID)
        .axis_style(FRAME)
        .x_desc("mean time of a run, s")
        .y_desc("mean energy of a run, J")
        .axis_desc_style(("sans-serif", 13).into_font().color(&INK))
        .label_style(("sans-serif", 12).into_font().color(&INK))
        .draw()?;
    let mut front: Vec<(f64, f64)> =
        places.iter().filter(|place| !place.is_dominated).map(|place| (place.seconds, place.joules)).collect();
    front.sort_by(|a, b| a.0.total_cmp(&b.0));
    let (best, _) = COLOURS[0];
    chart.draw_series(LineSeries::new(front, best.stroke_width(2)))?;
    for (number, place) in places.iter().enumerate() {
        let colour = if place.is_dominated { FRAME } else { best };
        let (x, y) = (place.seconds, place.joules);
        let bars = [
            PathElement::new(ends(x, place.half.0).map(|x| (x, y)), colour.stroke_width(1)),
            PathElement::new(ends(y, place.half.1).map(|y| (x, y)), colour.stroke_width(1)),
        ];
        chart.draw_series(bars)?;
        let name: String = place.name.chars().take(32).collect();
        let below = places[..number].iter().any(|other| is_near(other, place));
        let ink = if place.is_dominated { &FRAME } else { &INK };
        let label = Text::new(name, (9, if below { 5 } else { -18 }), letters(14, ink, HPos::Left));
        chart.draw_series([EmptyElement::at((x, y)) + Circle::new((0, 0), 4, colour.filled()) + label])?;
    }
    root.present()?;
    Ok(())
}

fn ends(middle: f64, half: f64) -> [f64; 2] {
    [middle - half, middle + half]
}

/// From the least to the greatest, with some room. It need not begin at 0: points are compared, not lengths.
fn range(values: impl Iterator<Item = f64>) -> std::ops::Range<f64> {
    let (low, high) =
        values.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), value| (low.min(value), high.max(value)));
    let free = ((high - low) * FREE).max(high.abs() * 1e-3).max(1e-9);
    low - free..high + free
}
