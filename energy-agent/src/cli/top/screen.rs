//! The live table on a terminal. A thread fetches pages, so that keys answer at once even while the agent does not.

use std::sync::mpsc::{self, Receiver};
use std::time::Duration;

use anyhow::{Context as _, Result};
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::{Cell, Row};
use ratatui::{DefaultTerminal, Frame};

use super::Agent;
use super::table::{Column, Order, Table};
use crate::signals;

/// Shows the table, beginning with `first`, until the user quits or a signal comes. The terminal is restored, on errors
/// and panics too.
pub(super) fn run(mut agent: Agent, first: Table, interval: Duration) -> Result<()> {
    let mut view = ScreenView::new(agent.page.url.clone(), first);
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
    let result = show(&mut terminal, &mut view, &pages, &ended);
    ratatui::restore();
    result
}

fn show(
    terminal: &mut DefaultTerminal,
    view: &mut ScreenView,
    pages: &Receiver<Result<Table>>,
    ended: &Receiver<String>,
) -> Result<()> {
    let mut changed = true;
    loop {
        if ended.try_recv().is_ok() {
            return Ok(());
        }
        while let Ok(page) = pages.try_recv() {
            view.update(page);
            changed = true;
        }
        if std::mem::take(&mut changed) {
            terminal.draw(|frame| view.draw(frame)).context("drawing")?;
        }
        if event::poll(Duration::from_millis(100)).context("reading keys")? {
            match event::read().context("reading keys")? {
                Event::Key(key) if key.kind != KeyEventKind::Release && view.quits_on(key) => return Ok(()),
                _ => changed = true,
            }
        }
    }
}

/// What is on the screen.
struct ScreenView {
    url: String,
    table: Table,
    order: Order,
    /// Entries scrolled past.
    offset: usize,
    /// Entries that fit below the heading when it was last drawn.
    height: usize,
    /// Why the last page did not come.
    lost: Option<String>,
}

impl ScreenView {
    fn new(url: String, mut table: Table) -> Self {
        table.sort(Order::Watts);
        Self { url, table, order: Order::Watts, offset: 0, height: 1, lost: None }
    }

    fn update(&mut self, page: Result<Table>) {
        match page {
            Ok(table) => {
                (self.table, self.lost) = (table, None);
                self.table.sort(self.order);
            }
            Err(error) => self.lost = Some(format!("{error:#}")),
        }
    }

    /// Acts on a key; true when it ends the program.
    fn quits_on(&mut self, key: KeyEvent) -> bool {
        let page = self.height.saturating_sub(1).max(1);
        match key.code {
            KeyCode::Char('q') | KeyCode::Esc => return true,
            KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => return true,
            KeyCode::Char('w') => self.sort(Order::Watts),
            KeyCode::Char('g') if self.table.node.gpus.is_some() => self.sort(Order::GpuWatts),
            KeyCode::Char('j') => self.sort(Order::Joules),
            KeyCode::Char('c') => self.sort(Order::Cpu),
            KeyCode::Char('n') => self.sort(Order::Name),
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

    fn sort(&mut self, order: Order) {
        (self.order, self.offset) = (order, 0);
        self.table.sort(order);
    }

    fn last_offset(&self) -> usize {
        self.table.entries.len().saturating_sub(self.height)
    }

    fn draw(&mut self, frame: &mut Frame<'_>) {
        let [meters, shares, gpus, body, lost, keys] = Layout::vertical([
            Constraint::Length(1),
            Constraint::Length(1),
            Constraint::Length(u16::from(self.table.node.gpus.is_some())),
            Constraint::Min(2),
            Constraint::Length(u16::from(self.lost.is_some())),
            Constraint::Length(1),
        ])
        .areas(frame.area());
        self.height = usize::from(body.height.saturating_sub(1));
        self.offset = self.offset.min(self.last_offset());
        let bold = Style::new().add_modifier(Modifier::BOLD);
        frame.render_widget(Line::styled(self.table.node.meters(), bold), meters);
        frame.render_widget(self.table.node.shares(), shares);
        if let Some(of_node) = &self.table.node.gpus {
            frame.render_widget(of_node.line(), gpus);
        }
        frame.render_widget(self.entries(body.width < 60), body);
        if let Some(reason) = &self.lost {
            frame.render_widget(Line::styled(format!("connection lost: {reason}"), bold), lost);
        }
        let shown = self.table.entries.len().min(self.offset + self.height);
        let help = format!(
            "{}-{shown} of {}   w watts  {}j joules  c cpu  n name  arrows scroll  q quit   {}",
            shown.min(self.offset + 1),
            self.table.entries.len(),
            if self.table.node.gpus.is_some() { "g GPU  " } else { "" },
            self.url,
        );
        frame.render_widget(Line::styled(help, Style::new().add_modifier(Modifier::DIM)), keys);
    }

    /// All columns, or watts and name alone where a cut number would mislead.
    fn entries(&self, narrow: bool) -> ratatui::widgets::Table<'_> {
        let is_shown = |column: &&Column| !narrow || matches!(column, Column::Watts | Column::GpuWatts);
        let columns: Vec<Column> = self.table.columns().iter().filter(is_shown).copied().collect();
        let right = |line: Line<'static>| Cell::from(line.right_aligned());
        let heading = |column: &Column| right(self.heading(column.heading(), column.order()));
        let mut cells: Vec<_> = columns.iter().map(heading).collect();
        cells.extend((!narrow).then(|| Cell::from("KIND")));
        cells.push(Cell::from(self.heading("NAME", Order::Name)));
        let numbers = columns.clone();
        let rows = self.table.entries.iter().skip(self.offset).take(self.height).map(move |entry| {
            let mut cells: Vec<_> = numbers.iter().map(|column| right(entry.number(*column).into())).collect();
            cells.extend((!narrow).then(|| Cell::from(entry.kind.as_str())));
            cells.push(Cell::from(if entry.ended { format!("{} (ended)", entry.name) } else { entry.name.clone() }));
            let style = if entry.ended { Style::new().add_modifier(Modifier::DIM) } else { Style::new() };
            Row::new(cells).style(style)
        });
        let width = |column: &Column| match column {
            Column::Watts | Column::GpuWatts => 9,
            Column::Joules => 12,
            Column::Cpu => 7,
        };
        let widths = columns.iter().map(width).chain((!narrow).then_some(9)).map(Constraint::Length);
        let widths: Vec<_> = widths.chain([Constraint::Fill(1)]).collect();
        ratatui::widgets::Table::new(rows, widths)
            .header(Row::new(cells).style(Style::new().add_modifier(Modifier::REVERSED)))
            .column_spacing(2)
    }

    /// A column's heading; the one that orders is underlined.
    fn heading(&self, name: &'static str, order: Order) -> Line<'static> {
        let style = if self.order == order { Style::new().add_modifier(Modifier::UNDERLINED) } else { Style::new() };
        Line::styled(name, style)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::top::node::GpuFigures;
    use crate::cli::top::table::{EntryKind, TableEntry};
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    fn view(entries: usize) -> ScreenView {
        let entry = |index: usize| TableEntry {
            kind: EntryKind::Unit,
            name: format!("unit-{index:03}.service"),
            watts: (index > 0).then_some(1.5),
            gpu_watts: (index == 3).then_some(200.0),
            joules: Some(12.0),
            cpu: None,
            ended: index == 0,
        };
        ScreenView::new(
            "http://n/metrics".to_owned(),
            Table { entries: (0..entries).map(entry).collect(), ..Table::default() },
        )
    }

    fn drawn(view: &mut ScreenView, width: u16, height: u16) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| view.draw(frame)).unwrap();
        let text = terminal.backend().to_string();
        text.lines().map(|line| format!("{}\n", line.trim_matches('"').trim_end())).collect()
    }

    #[test]
    fn no_terminal_is_too_small() {
        for entries in [0, 1, 300] {
            for (width, height) in [(1, 1), (1, 2), (3, 3), (10, 4), (500, 1), (1, 200), (80, 24)] {
                let mut view = view(entries);
                view.lost = (width % 2 == 0).then(|| "timeout".to_owned());
                view.offset = usize::MAX;
                drawn(&mut view, width, height);
                view.quits_on(KeyEvent::from(KeyCode::End));
                view.quits_on(KeyEvent::from(KeyCode::PageDown));
                drawn(&mut view, width, height);
            }
        }
    }

    #[test]
    fn keys_order_scroll_and_quit() {
        let mut view = view(10);
        let screen = drawn(&mut view, 80, 8);
        assert!(screen.contains("unit-001.service\n") && !screen.contains("unit-005"), "{screen}");
        view.quits_on(KeyEvent::from(KeyCode::End));
        let screen = drawn(&mut view, 80, 8);
        assert!(screen.contains("unit-000.service (ended)") && screen.contains("7-10 of 10"), "{screen}");
        view.quits_on(KeyEvent::from(KeyCode::Down));
        assert_eq!(view.offset, 6);
        view.quits_on(KeyEvent::from(KeyCode::Char('n')));
        assert_eq!(
            (view.order, view.offset, view.table.entries[0].name.as_str()),
            (Order::Name, 0, "unit-000.service")
        );
        assert!(!view.quits_on(KeyEvent::from(KeyCode::Char('c'))));
        assert_eq!(view.order, Order::Cpu);
        for key in [
            KeyEvent::from(KeyCode::Char('q')),
            KeyEvent::from(KeyCode::Esc),
            KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL),
        ] {
            assert!(view.quits_on(key));
        }
    }

    #[test]
    fn gpus_have_a_line_a_column_and_a_key_where_there_are_any() {
        let mut view = view(10);
        view.quits_on(KeyEvent::from(KeyCode::Char('g')));
        assert_eq!(view.order, Order::Watts, "there is no such column");
        assert!(!drawn(&mut view, 80, 12).contains("GPU"));
        view.table.node.gpus = Some(GpuFigures { count: 8, ..GpuFigures::default() });
        view.quits_on(KeyEvent::from(KeyCode::Char('g')));
        let screen = drawn(&mut view, 100, 12);
        let lines: Vec<&str> = screen.lines().map(str::trim).collect();
        assert!(lines[2].starts_with("8 GPUs") && lines[3].starts_with("WATTS  GPU WATTS"), "{screen}");
        assert_eq!(lines[4], "1.500    200.000          12.0        -  unit       unit-003.service", "{screen}");
        assert!(lines[11].contains("g GPU"), "{screen}");
        assert!(drawn(&mut view, 50, 12).contains("1.500    200.000  unit-003.service"), "{screen}");
    }

    #[test]
    fn a_lost_connection_is_a_line_until_the_next_page() {
        let mut view = view(1);
        view.update(Err(anyhow::anyhow!("no metrics at x")));
        assert!(drawn(&mut view, 60, 8).contains("connection lost: no metrics at x"));
        assert!(drawn(&mut view, 60, 8).contains("unit-000"));
        view.update(Ok(Table::default()));
        assert!(!drawn(&mut view, 60, 8).contains("lost"));
    }
}
