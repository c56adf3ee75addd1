//! Curves over time as SVG: panels above each other with one axis of time. Colours are those of a light page; a style sheet
//! in the picture replaces them where the reader prefers dark ones.

use std::error::Error;

use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use crate::number::{duration, float, nearest};

const WIDTH: u32 = 900;
const LEFT: u32 = 64;
const RIGHT: u32 = 18;
const TITLE: u32 = 34;
/// For the name of a panel and its legend.
const HEAD: u32 = 24;
const AXIS: u32 = 40;
const LETTER: i32 = 7;

pub(crate) const PAPER: RGBColor = RGBColor(255, 255, 255);
pub(crate) const INK: RGBColor = RGBColor(51, 51, 51);
pub(crate) const GRID: RGBColor = RGBColor(228, 228, 228);
pub(crate) const FRAME: RGBColor = RGBColor(136, 136, 136);
/// Can be told apart by people who see colours differently (Okabe and Ito), on white and, in the second place, on black.
pub(crate) const COLOURS: [(RGBColor, &str); 7] = [
    (RGBColor(0, 114, 178), "#56b4e9"),
    (RGBColor(213, 94, 0), "#ff8c42"),
    (RGBColor(0, 158, 115), "#2fd0a0"),
    (RGBColor(204, 121, 167), "#e79fc8"),
    (RGBColor(180, 130, 0), "#f0c040"),
    (RGBColor(140, 86, 75), "#c99a8c"),
    (RGBColor(85, 85, 85), "#b0b0b0"),
];

/// A picture.
#[derive(Clone, Debug, PartialEq)]
pub struct Chart {
    pub title: String,
    pub panels: Vec<ChartPanel>,
}

/// One system of axes.
#[derive(Clone, Debug, PartialEq)]
pub struct ChartPanel {
    /// What the vertical axis shows, with its unit.
    pub axis: String,
    pub height: u32,
    /// Highest value of the axis.
    pub top: f64,
    pub lines: Vec<Line>,
}

/// One curve.
#[derive(Clone, Debug, PartialEq)]
pub struct Line {
    /// For the legend; empty: not in it.
    pub name: String,
    /// Seconds since the beginning, and the value.
    pub points: Vec<(f64, f64)>,
    pub shape: Shape,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// Readings, joined.
    Line,
    /// Means: each value holds since the point before it.
    Steps,
    /// A limit: dashed.
    Limit,
}

/// The picture as SVG.
#[must_use]
pub fn svg(chart: &Chart) -> String {
    let mut text = String::new();
    draw(chart, &mut text).expect("a picture is drawn into memory");
    finished(text, &chart.title)
}

/// The picture with its title and the colours of a dark page.
pub(crate) fn finished(mut text: String, title: &str) -> String {
    let place = text.find('>').map_or(0, |end| end + 1);
    let title = crate::markup::escaped(title);
    text.insert_str(place, &format!("\n<title>{title}</title>\n<style>{}</style>", style()));
    text.replacen("<svg ", "<svg role=\"img\" class=\"chart\" ", 1)
}

/// The colours of a dark page.
fn style() -> String {
    let mut rules = String::new();
    let hex = |colour: &RGBColor| format!("#{:02X}{:02X}{:02X}", colour.0, colour.1, colour.2);
    let own = [(PAPER, "#16181c"), (INK, "#d8dade"), (GRID, "#33363c"), (FRAME, "#7a7f88")];
    for (light, dark) in own.iter().chain(&COLOURS) {
        let light = hex(light);
        rules
            .push_str(&format!(".chart [fill=\"{light}\"]{{fill:{dark}}}.chart [stroke=\"{light}\"]{{stroke:{dark}}}"));
    }
    format!("@media (prefers-color-scheme:dark){{{rules}}}")
}

type Drawn = Result<(), Box<dyn Error + Send + Sync>>;

fn draw(chart: &Chart, text: &mut String) -> Drawn {
    let heights = chart.panels.iter().map(|panel| panel.height + HEAD);
    let height = TITLE + heights.clone().sum::<u32>() + AXIS;
    let root = SVGBackend::with_string(text, (WIDTH, height)).into_drawing_area();
    root.fill(&PAPER)?;
    let left = pixels(LEFT);
    root.draw_text(&chart.title, &letters(19, &INK, HPos::Left), (left, 10))?;
    let points = chart.panels.iter().flat_map(|panel| &panel.lines).flat_map(|line| &line.points);
    let seconds = points.map(|(at, _)| *at).fold(1.0, f64::max);
    let mut y = TITLE;
    for panel in &chart.panels {
        let area = root.clone().shrink((0, y), (WIDTH, panel.height + HEAD));
        panel_of(panel, &area, seconds)?;
        y += panel.height + HEAD;
    }
    for second in ticks(seconds) {
        let x = left + across(second, seconds);
        root.draw_text(&clock(second, seconds), &letters(14, &INK, HPos::Center), (x, pixels(y) + 6))?;
    }
    let middle = (left + pixels(WIDTH - RIGHT)) / 2;
    let whole = format!("time since the beginning ({})", duration(seconds));
    root.draw_text(&whole, &letters(14, &INK, HPos::Center), (middle, pixels(y) + 23))?;
    root.present()?;
    Ok(())
}

fn panel_of(panel: &ChartPanel, area: &DrawingArea<SVGBackend<'_>, Shift>, seconds: f64) -> Drawn {
    let ChartPanel { axis, top, lines, .. } = panel;
    area.draw_text(axis, &letters(15, &INK, HPos::Left), (pixels(LEFT), 6))?;
    let mut chart = ChartBuilder::on(area)
        .margin_top(HEAD)
        .margin_right(RIGHT)
        .set_label_area_size(LabelAreaPosition::Left, LEFT)
        .build_cartesian_2d(0.0..seconds, 0.0..*top)?;
    chart
        .configure_mesh()
        .disable_x_axis()
        .disable_x_mesh()
        .y_labels(5)
        .max_light_lines(0)
        .bold_line_style(GRID)
        .axis_style(FRAME)
        .y_label_formatter(&|value| plain(*value))
        .label_style(("sans-serif", 14).into_font().color(&INK))
        .draw()?;
    chart.draw_series(ticks(seconds).into_iter().map(|at| PathElement::new([(at, 0.0), (at, *top)], GRID)))?;
    let mut right = pixels(WIDTH - RIGHT);
    for (line, (colour, _)) in lines.iter().zip(COLOURS.iter().cycle()).collect::<Vec<_>>().into_iter().rev() {
        match line.shape {
            Shape::Line => chart.draw_series(LineSeries::new(line.points.iter().copied(), colour.stroke_width(2)))?,
            Shape::Steps => chart.draw_series(LineSeries::new(steps(&line.points), colour.stroke_width(2)))?,
            Shape::Limit => {
                let dashed = DashedLineSeries::new(limit(&line.points, seconds), 7, 5, colour.stroke_width(2));
                chart.draw_series(dashed)?
            }
        };
        if !line.name.is_empty() {
            let mark = if line.shape == Shape::Limit { "\u{2504}" } else { "\u{25a0}" };
            let name = format!("{mark} {}", shortened(&line.name));
            area.draw_text(&name, &letters(14, colour, HPos::Right), (right, 6))?;
            right -= LETTER * i32::try_from(name.chars().count()).unwrap_or_default() + 12;
        }
    }
    Ok(())
}

/// A legend has room for so much of a name.
fn shortened(name: &str) -> String {
    const MOST: usize = 28;
    if name.chars().count() <= MOST { name.to_owned() } else { name.chars().take(MOST - 1).chain(['…']).collect() }
}

pub(crate) fn letters<'a>(size: u32, colour: &'a RGBColor, side: HPos) -> TextStyle<'a> {
    ("sans-serif", size).into_font().color(colour).pos(Pos::new(side, VPos::Top))
}

/// Corners of a step curve.
fn steps(points: &[(f64, f64)]) -> Vec<(f64, f64)> {
    let corners = |pair: &[(f64, f64)]| [(pair[0].0, pair[1].1), pair[1]];
    points.windows(2).flat_map(corners).collect()
}

/// One reading of a limit is a line over the whole width.
fn limit(points: &[(f64, f64)], seconds: f64) -> Vec<(f64, f64)> {
    match points {
        [(_, value)] => vec![(0.0, *value), (seconds, *value)],
        _ => points.to_vec(),
    }
}

/// Pixels from the left end of the axis.
fn across(second: f64, seconds: f64) -> i32 {
    let width = f64::from(WIDTH - LEFT - RIGHT);
    i32::try_from(nearest(second / seconds * width)).unwrap_or_default()
}

fn pixels(pixels: u32) -> i32 {
    i32::try_from(pixels).unwrap_or_default()
}

/// Up to ten round times from 0 on.
fn ticks(seconds: f64) -> Vec<f64> {
    let steps = [
        0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 15.0, 30.0, 60.0, 120.0, 300.0, 600.0, 900.0, 1800.0, 3600.0, 7200.0,
        14_400.0, 21_600.0, 43_200.0, 86_400.0,
    ];
    let most = steps[steps.len() - 1] * (seconds / 864_000.0).ceil();
    let step = steps.into_iter().find(|step| seconds / step <= 10.0).unwrap_or(most);
    (0..=nearest((seconds / step + 1e-9).floor())).map(|number| float(number) * step).collect()
}

/// A time on the axis: seconds, `m:ss`, or `h:mm`.
fn clock(second: f64, seconds: f64) -> String {
    let whole = nearest(second);
    match seconds {
        // Up to there a step is half a second or less.
        all if all <= 5.0 => format!("{second:.1} s"),
        all if all < 120.0 => format!("{whole} s"),
        all if all < 7200.0 => format!("{}:{:02}", whole / 60, whole % 60),
        _ => format!("{}:{:02} h", whole / 3600, whole % 3600 / 60),
    }
}

/// The shortest text of a round number.
fn plain(value: f64) -> String {
    format!("{}", (value * 1000.0).round() / 1000.0)
}

/// The round number at or above the highest value, for the top of an axis.
pub(crate) fn round_top(highest: f64) -> f64 {
    if highest <= 0.0 {
        return 1.0;
    }
    let power = 10.0_f64.powf(highest.log10().floor());
    let steps = [1.0, 1.2, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 12.0];
    steps.into_iter().map(|step| step * power).find(|top| *top >= highest * 1.02).unwrap_or(10.0 * power)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::float_cmp, reason = "tests panic; round numbers are exact")]

    use super::*;

    #[test]
    fn axes_have_round_numbers() {
        assert_eq!(ticks(60.0), [0.0, 10.0, 20.0, 30.0, 40.0, 50.0, 60.0]);
        assert_eq!(ticks(1889.0), [0.0, 300.0, 600.0, 900.0, 1200.0, 1500.0, 1800.0]);
        assert_eq!(ticks(4_000_000.0).len(), 10);
        let labels = |seconds| ticks(seconds).into_iter().map(|at| clock(at, seconds)).collect::<Vec<_>>();
        assert_eq!(labels(2.4), ["0.0 s", "0.5 s", "1.0 s", "1.5 s", "2.0 s"]);
        assert_eq!(labels(5.2), ["0 s", "1 s", "2 s", "3 s", "4 s", "5 s"]);
        assert_eq!((clock(300.0, 1889.0), clock(3660.0, 9000.0)), ("5:00".to_owned(), "1:01 h".to_owned()));
        assert_eq!([round_top(402.3), round_top(0.0), round_top(98.0), round_top(99.0)], [500.0, 1.0, 100.0, 120.0]);
    }

    #[test]
    fn a_mean_holds_since_the_point_before_it() {
        assert_eq!(
            steps(&[(0.0, 0.0), (15.0, 40.0), (30.0, 20.0)]),
            [(0.0, 40.0), (15.0, 40.0), (15.0, 20.0), (30.0, 20.0)]
        );
    }

    #[test]
    fn a_picture_is_well_formed_whatever_its_names_are() {
        let hostile = "</text><script>alert(1)</script>&\"'";
        let line = |shape| Line { name: hostile.to_owned(), points: vec![(0.0, 1.0), (5.0, 2.0)], shape };
        let lines = [Shape::Line, Shape::Steps, Shape::Limit].map(line).to_vec();
        let panel = ChartPanel { axis: hostile.to_owned(), height: 90, top: 2.5, lines };
        let text = svg(&Chart { title: hostile.to_owned(), panels: vec![panel] });
        assert!(!text.contains("<script") && text.contains("&lt;script&gt;"), "{text}");
        assert_eq!(text.matches("<text").count(), text.matches("</text>").count());
        assert!(text.trim_end().ends_with("</svg>"));
    }
}
