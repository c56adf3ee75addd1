//! The live table on a terminal. A thread fetches pages, so that keys answer at once even while the agent does not.

use std::sync::mpsc::{self, Receiver};
use std::time::Duration;

use anyhow::{Context as _, Result};
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Modifier, Style};
use ratatui::text::{Line, Text};
use ratatui::widgets::{Cell, Row as ScreenLine};
use ratatui::{DefaultTerminal, Frame};

use super::figures::Column;
use super::rows::{Order, Row, RowFilter, Rows};
use super::{Agent, KIND, NO_PROCESSES, Table, help};
use crate::config::TopArgs;
use crate::signals::{self, EndSignal};

/// Narrower screens show the total alone: a cut number would mislead.
const NARROW: u16 = 60;
/// Narrower screens with GPUs have no room for the kind of a row.
const WIDE: u16 = 100;

/// Shows the table, beginning with `first`, until the user quits or a signal comes. The terminal is restored, on errors
/// and panics too.
pub(super) fn run(mut agent: Agent, first: Table, interval: Duration, args: &TopArgs) -> Result<()> {
    let view = RowFilter { all: args.all, ..RowFilter::default() };
    let mut screen = Screen::new(agent.page.url.clone(), first, view, args.processes);
    let (send, pages) = mpsc::channel();
    std::thread::spawn(move || {
        loop {
            std::thread::sleep(interval);
            // Nobody listens any more once the screen has ended.
            if send.send(agent.fetch()).is_err() {
                return;
            }
        }
    });
    let ended = signals::end()?;
    let mut terminal = ratatui::try_init().context("preparing the terminal")?;
    let result = show(&mut terminal, &mut screen, &pages, &ended);
    ratatui::restore();
    result
}

fn show(
    terminal: &mut DefaultTerminal,
    screen: &mut Screen,
    pages: &Receiver<Result<Table>>,
    ended: &Receiver<EndSignal>,
) -> Result<()> {
    let mut changed = true;
    loop {
        if ended.try_recv().is_ok() {
            return Ok(());
        }
        while let Ok(page) = pages.try_recv() {
            screen.update(page);
            changed = true;
        }
        if std::mem::take(&mut changed) {
            terminal.draw(|frame| screen.draw(frame)).context("drawing")?;
        }
        if event::poll(Duration::from_millis(100)).context("reading keys")? {
            match event::read().context("reading keys")? {
                Event::Key(key) if key.kind != KeyEventKind::Release && screen.quits_on(key) => return Ok(()),
                _ => changed = true,
            }
        }
    }
}

/// What keys act on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Focus {
    Table,
    /// Letters are added to the search.
    Search,
    Help,
}

/// What is on the screen.
struct Screen {
    url: String,
    table: Table,
    view: RowFilter,
    processes: bool,
    focus: Focus,
    rows: Rows,
    /// Rows scrolled past.
    offset: usize,
    /// Rows that fit below the heading when it was last drawn.
    height: usize,
    /// Why the last page did not come.
    lost: Option<String>,
}

impl Screen {
    fn new(url: String, table: Table, view: RowFilter, processes: bool) -> Self {
        let rows = Rows::of(table.branches(processes), &view);
        Self { url, table, view, processes, focus: Focus::Table, rows, offset: 0, height: 1, lost: None }
    }

    fn update(&mut self, page: Result<Table>) {
        match page {
            Ok(table) => {
                (self.table, self.lost) = (table, None);
                self.choose();
            }
            Err(error) => self.lost = Some(format!("{error:#}")),
        }
    }

    /// Chooses the rows anew.
    fn choose(&mut self) {
        self.rows = Rows::of(self.table.branches(self.processes), &self.view);
    }

    /// Acts on a key; true when it ends the program.
    fn quits_on(&mut self, key: KeyEvent) -> bool {
        if key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL) {
            return true;
        }
        match self.focus {
            Focus::Help => self.focus = Focus::Table,
            Focus::Search => self.search(key.code),
            Focus::Table => return self.acts_on(key.code),
        }
        false
    }

    fn search(&mut self, key: KeyCode) {
        match key {
            KeyCode::Enter => self.focus = Focus::Table,
            KeyCode::Esc => {
                self.view.search.clear();
                self.focus = Focus::Table;
            }
            KeyCode::Backspace => drop(self.view.search.pop()),
            KeyCode::Char(letter) => self.view.search.extend(letter.to_lowercase()),
            _ => return,
        }
        self.offset = 0;
        self.choose();
    }

    fn acts_on(&mut self, key: KeyCode) -> bool {
        let page = self.height.saturating_sub(1).max(1);
        match key {
            KeyCode::Char('q') => return true,
            // The first ends the search.
            KeyCode::Esc if self.view.search.is_empty() => return true,
            KeyCode::Esc => self.search(KeyCode::Esc),
            KeyCode::Char('?' | 'h') => self.focus = Focus::Help,
            KeyCode::Char('/') => self.focus = Focus::Search,
            KeyCode::Char('t') => self.order(Order::By(Column::Total)),
            KeyCode::Char('w') => self.order(Order::By(Column::CpuWatts)),
            KeyCode::Char('g') if self.table.node.gpus.is_some() => self.order(Order::By(Column::GpuWatts)),
            KeyCode::Char('c') => self.order(Order::By(Column::CpuPercent)),
            KeyCode::Char('e') => self.order(Order::By(Column::WattHours)),
            KeyCode::Char('n') => self.order(Order::Name),
            KeyCode::Char('z') => {
                self.view.all = !self.view.all;
                self.choose();
            }
            KeyCode::Char('p') => {
                (self.processes, self.offset) = (!self.processes, 0);
                self.choose();
            }
            KeyCode::Char('+' | '=') => self.deepen(1),
            KeyCode::Char('-') => self.deepen(-1),
            KeyCode::Up => self.offset = self.offset.saturating_sub(1),
            KeyCode::Down => self.offset += 1,
            KeyCode::PageUp => self.offset = self.offset.saturating_sub(page),
            KeyCode::PageDown => self.offset += page,
            KeyCode::Home => self.offset = 0,
            KeyCode::End => self.offset = usize::MAX,
            _ => {}
        }
        self.offset = self.offset.min(self.last_offset());
        false
    }

    fn order(&mut self, order: Order) {
        (self.view.order, self.offset) = (order, 0);
        self.choose();
    }

    /// Shows a level more or less than are seen.
    fn deepen(&mut self, levels: isize) {
        let deepest = self.rows.shown.iter().map(|row| row.depth).max().unwrap_or(0);
        self.view.depth = Some(deepest.saturating_add_signed(levels));
        self.choose();
    }

    fn last_offset(&self) -> usize {
        self.rows.shown.len().saturating_sub(self.height)
    }

    fn draw(&mut self, frame: &mut Frame<'_>) {
        // The table has the larger half.
        let lines = self.table.node.lines(usize::from(frame.area().height / 2));
        let height = u16::try_from(lines.len()).unwrap_or(u16::MAX);
        let [head, body, note, keys] = Layout::vertical([
            Constraint::Length(height),
            Constraint::Min(2),
            Constraint::Length(u16::from(self.note().is_some())),
            Constraint::Length(1),
        ])
        .areas(frame.area());
        self.height = usize::from(body.height.saturating_sub(1));
        self.offset = self.offset.min(self.last_offset());
        let bold = Style::new().add_modifier(Modifier::BOLD);
        let line = |(at, line): (usize, String)| if at == 0 { Line::styled(line, bold) } else { line.into() };
        frame.render_widget(Text::from_iter(lines.into_iter().enumerate().map(line)), head);
        if self.focus == Focus::Help {
            frame.render_widget(Text::from_iter(help::TEXT), body);
        } else {
            frame.render_widget(self.body(body.width), body);
        }
        if let Some(text) = self.note() {
            frame.render_widget(Line::styled(text, bold), note);
        }
        frame.render_widget(Line::styled(self.footer(), Style::new().add_modifier(Modifier::DIM)), keys);
    }

    /// What matters more than the keys.
    fn note(&self) -> Option<String> {
        let lost = self.lost.as_ref().map(|reason| format!("connection lost: {reason}"));
        let search = || match (self.focus, self.view.search.as_str()) {
            (Focus::Search, text) => Some(format!("search: {text}_   Enter keeps it, Esc ends it")),
            (_, "") => None,
            (_, text) => Some(format!("search: {text}   Esc ends it")),
        };
        let no_processes = || (self.processes && self.table.processes.is_empty()).then(|| NO_PROCESSES.to_owned());
        lost.or_else(search).or_else(no_processes)
    }

    fn footer(&self) -> String {
        let all = self.rows.shown.len();
        let last = all.min(self.offset + self.height);
        let idle = if self.rows.idle > 0 { format!(", {} idle (z)", self.rows.idle) } else { String::new() };
        let first = last.min(self.offset + 1);
        format!("{first}-{last} of {all}{idle}   ? help   / search   q quit   {}", self.url)
    }

    fn body(&self, width: u16) -> ratatui::widgets::Table<'_> {
        let columns: Vec<Column> = match width {
            0..NARROW => vec![Column::Total],
            _ => self.table.columns().to_vec(),
        };
        let has_kind = width >= WIDE || (width >= NARROW && self.table.node.gpus.is_none());
        let right = |line: Line<'static>| Cell::from(line.right_aligned());
        let heading = |column: &Column| right(self.heading(column.heading(), Order::By(*column)));
        let mut head: Vec<_> = columns.iter().map(heading).collect();
        head.extend(has_kind.then(|| Cell::from("KIND")));
        head.push(Cell::from(self.heading("NAME", Order::Name)));
        let widths = columns.iter().map(|column| column.width()).chain(has_kind.then_some(KIND));
        let widths: Vec<_> = widths.map(Constraint::Length).chain([Constraint::Fill(1)]).collect();
        let rows = self.rows.shown.iter().skip(self.offset).take(self.height).map(move |row| {
            let mut cells: Vec<_> = columns.iter().map(|column| right(column.text(&row.figures).into())).collect();
            cells.extend(has_kind.then(|| Cell::from(row.kind.as_str())));
            cells.push(Cell::from(row.label()));
            ScreenLine::new(cells).style(style(row))
        });
        ratatui::widgets::Table::new(rows, widths)
            .header(ScreenLine::new(head).style(Style::new().add_modifier(Modifier::REVERSED)))
            .column_spacing(1)
    }

    /// A column's heading; the one that orders is underlined.
    fn heading(&self, name: &'static str, order: Order) -> Line<'static> {
        let is_first = self.view.order == order;
        let style = if is_first { Style::new().add_modifier(Modifier::UNDERLINED) } else { Style::new() };
        Line::styled(name, style)
    }
}

/// Top rows stand out, ended ones fade.
const fn style(row: &Row) -> Style {
    match row {
        Row { ended: true, .. } => Style::new().add_modifier(Modifier::DIM),
        Row { depth: 0, .. } => Style::new().add_modifier(Modifier::BOLD),
        _ => Style::new(),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests panic")]

    use energy_export::parse::samples;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::super::entry::Entries;
    use super::super::rates::PreviousPage;
    use super::*;

    fn table(page: &str) -> Table {
        Table::of(Entries::read(&samples(page).unwrap(), &mut PreviousPage::default()))
    }

    /// Services that draw as many watts as their number says; the first draws nothing.
    fn units(count: usize) -> String {
        (0..count).map(|at| format!("energy_agent_system_cpu_watts{{unit=\"unit-{at:03}.service\"}} {at}\n")).collect()
    }

    fn screen(page: &str) -> Screen {
        Screen::new("http://n/metrics".to_owned(), table(page), RowFilter::default(), false)
    }

    fn drawn(screen: &mut Screen, width: u16, height: u16) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| screen.draw(frame)).unwrap();
        let text = terminal.backend().to_string();
        text.lines().map(|line| format!("{}\n", line.trim_matches('"').trim_end())).collect()
    }

    fn press(screen: &mut Screen, keys: &str) {
        keys.chars().for_each(|key| assert!(!screen.quits_on(KeyEvent::from(KeyCode::Char(key))), "{key}"));
    }

    #[test]
    fn no_terminal_is_too_small() {
        for entries in [0, 1, 300] {
            for (width, height) in [(1, 1), (1, 2), (3, 3), (10, 4), (500, 1), (1, 200), (80, 24)] {
                let mut screen = screen(&units(entries));
                screen.lost = (width % 2 == 0).then(|| "timeout".to_owned());
                screen.offset = usize::MAX;
                drawn(&mut screen, width, height);
                for key in [KeyCode::End, KeyCode::PageDown, KeyCode::Char('-'), KeyCode::Char('?')] {
                    screen.quits_on(KeyEvent::from(key));
                    drawn(&mut screen, width, height);
                }
            }
        }
    }

    #[test]
    fn keys_order_scroll_and_quit() {
        let mut screen = screen(&units(10));
        let text = drawn(&mut screen, 80, 8);
        assert!(text.contains("unit-009.service\n") && !text.contains("unit-004"), "{text}");
        assert!(text.contains("1-4 of 10, 1 idle (z)   ? help"), "{text}");
        press(&mut screen, "z");
        screen.quits_on(KeyEvent::from(KeyCode::End));
        let text = drawn(&mut screen, 80, 8);
        assert!(text.contains("unit-000.service") && text.contains("8-11 of 11   ? help"), "{text}");
        screen.quits_on(KeyEvent::from(KeyCode::Down));
        assert_eq!(screen.offset, 7);
        press(&mut screen, "n");
        let first = (screen.view.order, screen.offset, screen.rows.shown[1].name.as_str());
        assert_eq!(first, (Order::Name, 0, "unit-000.service"));
        press(&mut screen, "-");
        assert_eq!(screen.rows.shown.len(), 1, "the services together");
        press(&mut screen, "+");
        assert_eq!(screen.rows.shown.len(), 11);
        press(&mut screen, "c");
        assert_eq!(screen.view.order, Order::By(Column::CpuPercent));
        for key in [
            KeyEvent::from(KeyCode::Char('q')),
            KeyEvent::from(KeyCode::Esc),
            KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL),
        ] {
            assert!(screen.quits_on(key));
        }
    }

    #[test]
    fn a_search_takes_every_letter_until_it_is_kept_or_ended() {
        let mut screen = screen(&units(30));
        press(&mut screen, "/IT-01q");
        assert!(drawn(&mut screen, 80, 12).contains("search: it-01q_"));
        assert!(screen.rows.shown.is_empty());
        screen.quits_on(KeyEvent::from(KeyCode::Backspace));
        screen.quits_on(KeyEvent::from(KeyCode::Enter));
        let text = drawn(&mut screen, 80, 24);
        assert!(
            text.contains("unit-019.service") && !text.contains("unit-020") && text.contains("search: it-01"),
            "{text}"
        );
        assert!(!screen.quits_on(KeyEvent::from(KeyCode::Esc)), "the first ends the search");
        assert_eq!((screen.rows.shown.len(), screen.focus), (30, Focus::Table));
        assert!(screen.quits_on(KeyEvent::from(KeyCode::Esc)));
    }

    #[test]
    fn help_fits_a_terminal_and_any_key_leaves_it() {
        let mut screen = screen(&units(3));
        press(&mut screen, "?");
        let text = drawn(&mut screen, 80, 24);
        assert!(help::TEXT.iter().all(|line| text.contains(line)), "{text}");
        press(&mut screen, "q");
        assert!(drawn(&mut screen, 80, 24).contains("unit-002.service"));
    }

    #[test]
    fn processes_come_on_demand_and_are_no_part_of_the_tree() {
        let mut screen = screen(&units(3));
        press(&mut screen, "p");
        assert!(drawn(&mut screen, 80, 12).contains("no processes: start the agent with --export.levels="));
        let page = units(3) + "kepler_process_cpu_watts{pid=\"7\",comm=\"make\"} 2\n";
        screen.update(Ok(table(&page)));
        let text = drawn(&mut screen, 80, 12);
        assert!(text.contains("process   make (7)") && !text.contains("unit-002"), "{text}");
        press(&mut screen, "p");
        assert!(!drawn(&mut screen, 80, 12).contains("make"));
    }

    #[test]
    fn gpus_have_lines_columns_and_a_key_where_there_are_any() {
        let mut screen = screen(&units(10));
        press(&mut screen, "g");
        assert_eq!(screen.view.order, Order::By(Column::Total), "there is no such column");
        assert!(!drawn(&mut screen, 80, 12).contains("GPU"));
        let gpus =
            (0..8).map(|at| format!("kepler_node_gpu_info{{gpu_uuid=\"u{at}\",gpu=\"{at}\",gpu_name=\"A\"}} 1\n"));
        let used = "energy_agent_system_gpu_watts{unit=\"unit-003.service\"} 200\n";
        screen.update(Ok(table(&(gpus.collect::<String>() + used + &units(10)))));
        press(&mut screen, "g");
        let text = drawn(&mut screen, 80, 24);
        let lines: Vec<&str> = text.lines().map(str::trim).collect();
        assert!(lines[2].starts_with("8 GPUs") && lines[10].starts_with("GPU 7"), "{text}");
        assert!(lines[11].starts_with("TOTAL W    CPU W    GPU W    CPU%         Wh NAME"), "{text}");
        assert_eq!(lines[13], "203.0    3.000    200.0       -          -   unit-003.service", "{text}");
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        let text = drawn(&mut screen, 80, 12);
        assert!(text.contains("and 6 more GPUs") && text.contains("unit-003"), "{text}");
        assert!(drawn(&mut screen, 50, 24).contains("203.0   unit-003.service"));
    }

    #[test]
    fn a_lost_connection_is_a_line_until_the_next_page() {
        let mut screen = screen(&units(2));
        screen.update(Err(anyhow::anyhow!("no metrics at x")));
        assert!(drawn(&mut screen, 60, 8).contains("connection lost: no metrics at x"));
        assert!(drawn(&mut screen, 60, 8).contains("unit-001"));
        screen.update(Ok(table("")));
        assert!(!drawn(&mut screen, 60, 8).contains("lost"));
    }
}
