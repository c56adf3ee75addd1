//! Curves over time as SVG: panels above each other with one axis of seconds.

use std::fmt::Write as _;

use fake_nvml::units::{count, float, whole};

const WIDTH: f64 = 860.0;
const LEFT: f64 = 64.0;
const RIGHT: f64 = 16.0;
const TOP: f64 = 44.0;
const GAP: f64 = 34.0;
const BOTTOM: f64 = 40.0;
/// Can be told apart by people who see colours differently.
const COLOURS: [&str; 8] = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c564b", "#555555"];

pub struct Chart {
    pub title: String,
    pub panels: Vec<Panel>,
}

pub struct Panel {
    /// What the vertical axis shows, with its unit.
    pub axis: &'static str,
    pub height: f64,
    pub top: f64,
    pub lines: Vec<Line>,
    /// A level to compare with.
    pub rule: Option<(f64, String)>,
}

pub struct Line {
    /// For the legend; empty: not in it.
    pub name: String,
    /// Values at equal distances.
    pub values: Vec<f64>,
    pub spacing_s: f64,
}

impl Line {
    /// Means of so many values at a time.
    pub fn of(name: &str, spacing_s: f64, values: impl Iterator<Item = f64>, many: usize) -> Self {
        let values: Vec<f64> = values.collect();
        let mean = |part: &[f64]| part.iter().sum::<f64>() / f64::from(count(part.len()));
        Self {
            name: name.to_owned(),
            values: values.chunks(many).map(mean).collect(),
            spacing_s: spacing_s * f64::from(count(many)),
        }
    }

    fn seconds(&self) -> f64 {
        self.spacing_s * f64::from(count(self.values.len()))
    }
}

impl Chart {
    pub fn svg(&self) -> String {
        let height = TOP + self.panels.iter().map(|panel| panel.height + GAP).sum::<f64>() - GAP + BOTTOM;
        let seconds = self.panels.iter().flat_map(|panel| &panel.lines).map(Line::seconds).fold(1.0, f64::max);
        let mut text = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" font-family=\"sans-serif\" \
             font-size=\"12\" fill=\"#333\">\n<rect width=\"{WIDTH}\" height=\"{height}\" fill=\"#fff\"/>\n\
             <text x=\"{LEFT}\" y=\"20\" font-size=\"14\" font-weight=\"bold\">{}</text>\n",
            escaped(&self.title)
        );
        let mut y = TOP;
        for (number, panel) in self.panels.iter().enumerate() {
            panel.draw(&mut text, y, seconds, number == 0);
            y += panel.height + GAP;
        }
        let bottom = y - GAP;
        for second in ticks(seconds) {
            let x = across(second, seconds);
            let _ =
                writeln!(text, "<text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{second}</text>", bottom + 16.0);
        }
        let middle = LEFT + (WIDTH - LEFT - RIGHT) / 2.0;
        let _ = writeln!(
            text,
            "<text x=\"{middle}\" y=\"{:.1}\" text-anchor=\"middle\">time, s</text>\n</svg>",
            bottom + 33.0
        );
        text
    }
}

impl Panel {
    fn draw(&self, text: &mut String, y: f64, seconds: f64, legend: bool) {
        let Self { axis, height, top, lines, rule } = self;
        let down = |value: f64| y + height - value / top * height;
        let right = WIDTH - RIGHT;
        for second in ticks(seconds) {
            let x = across(second, seconds);
            let _ = writeln!(text, "<path d=\"M{x:.1} {y}v{height}\" stroke=\"#eee\"/>");
        }
        for value in ticks(*top) {
            let at = down(value);
            let _ = writeln!(
                text,
                "<path d=\"M{LEFT} {at:.1}H{right}\" stroke=\"#e4e4e4\"/>\
                 <text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{value}</text>",
                LEFT - 6.0,
                at + 4.0
            );
        }
        let _ = writeln!(text, "<text x=\"{LEFT}\" y=\"{:.1}\">{axis}</text>", y - 6.0);
        for (line, colour) in lines.iter().zip(COLOURS.iter().cycle()) {
            let _ = writeln!(
                text,
                "<path d=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.4\" stroke-linejoin=\"round\"/>",
                course(line, seconds, down)
            );
        }
        if let Some((value, name)) = rule {
            let at = down(*value);
            let _ = writeln!(
                text,
                "<path d=\"M{LEFT} {at:.1}H{right}\" stroke=\"#c00\" stroke-dasharray=\"6 4\"/>\
                 <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\" fill=\"#c00\">{}</text>",
                right - 4.0,
                at - 5.0,
                escaped(name)
            );
        }
        let _ = writeln!(text, "<path d=\"M{LEFT} {y}v{height}H{right}\" fill=\"none\" stroke=\"#888\"/>");
        if legend {
            let mut x = right;
            for (line, colour) in lines
                .iter()
                .zip(COLOURS.iter().cycle())
                .filter(|(line, _)| !line.name.is_empty())
                .collect::<Vec<_>>()
                .into_iter()
                .rev()
            {
                let _ = writeln!(
                    text,
                    "<text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"end\" fill=\"{colour}\">&#9632; {}</text>",
                    y - 6.0,
                    escaped(&line.name)
                );
                x -= 26.0 + 6.6 * f64::from(count(line.name.chars().count()));
            }
        }
    }
}

/// Steps, with what does not move by a third of a pixel left out.
fn course(line: &Line, seconds: f64, down: impl Fn(f64) -> f64) -> String {
    let mut text = String::new();
    let mut before = f64::NAN;
    for (number, value) in line.values.iter().enumerate() {
        let y = down(*value);
        let x = across(line.spacing_s * f64::from(count(number)), seconds);
        if before.is_nan() {
            let _ = write!(text, "M{x:.1} {y:.1}");
        } else if (y - before).abs() < 0.3 {
            continue;
        } else {
            let _ = write!(text, "H{x:.1}V{y:.1}");
        }
        before = y;
    }
    let _ = write!(text, "H{:.1}", across(line.seconds(), seconds));
    text
}

fn across(second: f64, seconds: f64) -> f64 {
    LEFT + second / seconds * (WIDTH - LEFT - RIGHT)
}

/// Four to ten round numbers from 0 on.
fn ticks(top: f64) -> Vec<f64> {
    let power = 10.0_f64.powf((top / 10.0).log10().ceil());
    let step = [0.5, 1.0].into_iter().map(|part| part * power).find(|step| top / step <= 10.0).unwrap_or(power);
    (0..=whole((top / step + 1e-9).floor())).map(|number| (float(number) * step * 1000.0).round() / 1000.0).collect()
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_have_round_numbers() {
        assert_eq!(ticks(800.0), [0.0, 100.0, 200.0, 300.0, 400.0, 500.0, 600.0, 700.0, 800.0]);
        assert_eq!(ticks(2.0), [0.0, 0.5, 1.0, 1.5, 2.0]);
        assert_eq!(ticks(300.0).len(), 7);
    }

    #[test]
    fn what_stands_still_is_one_step() {
        let line = Line::of("a", 0.5, [1.0, 1.0, 1.0, 3.0, 2.0, 2.0, 2.0, 2.0].into_iter(), 2);
        // Means of pairs: 1, 2, 2, 2, a second each.
        assert_eq!(course(&line, 4.0, |value| value), format!("M64.0 1.0H{:.1}V2.0H844.0", 64.0 + 780.0 / 4.0));
    }
}
