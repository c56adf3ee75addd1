//! `energy-agent top`: fetches the metrics page of a running agent and shows who uses how much, as a live table on a
//! terminal and as plain lines elsewhere.

mod entry;
mod figures;
mod gpus;
mod help;
mod node;
mod rates;
mod rows;
mod screen;
mod tree;

use std::io::{self, ErrorKind, IsTerminal as _, Write};
use std::time::Duration;

use anyhow::Result;

use self::entry::{Entries, EntryKey};
use self::figures::Column;
use self::node::NodeFigures;
use self::rates::PreviousPage;
use self::rows::{RowFilter, Rows};
use self::tree::Branch;
use super::agent_page::AgentPage;
use crate::config::TopArgs;

/// Longest wait for the second page of `--once`; CPU shares are differences between two ticks.
const SECOND_TICK: Duration = Duration::from_secs(3);
/// Columns of the kind of a row, in plain lines and on a wide screen.
const KIND: u16 = 9;

/// Shows the agent at `args.address` until the user quits, or for `args.iterations` refreshes.
///
/// # Errors
/// When the address is none, nothing answers there at the start, what answers is no agent, or, in plain lines, it
/// stops answering.
pub fn run(args: &TopArgs) -> Result<()> {
    let mut agent = Agent::new(args)?;
    let interval = args.interval.max(Duration::from_millis(100));
    let first = agent.fetch()?;
    let is_plain = args.once || args.iterations > 0;
    if !is_plain && io::stdout().is_terminal() && io::stdin().is_terminal() {
        return screen::run(agent, first, interval, args);
    }
    match plain(&mut agent, first, interval, args) {
        // Whoever read the lines has enough: `energy-agent top | head`.
        Err(error) if error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == ErrorKind::BrokenPipe) => {
            Ok(())
        }
        other => other,
    }
}

fn plain(agent: &mut Agent, first: Table, interval: Duration, args: &TopArgs) -> Result<()> {
    let mut out = io::stdout().lock();
    let mut table = first;
    if args.once {
        std::thread::sleep(table.node.interval().min(SECOND_TICK));
        table = agent.fetch()?;
    }
    let last = if args.once { 1 } else { args.iterations };
    let mut shown = 0;
    loop {
        write_plain(&mut out, &table, args)?;
        shown += 1;
        if shown == last {
            return Ok(());
        }
        writeln!(out)?;
        std::thread::sleep(interval);
        table = agent.fetch()?;
    }
}

/// One refresh as aligned lines: the node, a heading, and at most `--rows` rows.
fn write_plain(out: &mut impl Write, table: &Table, args: &TopArgs) -> io::Result<()> {
    for line in table.node.lines(usize::MAX) {
        writeln!(out, "{line}")?;
    }
    if args.processes && table.processes.is_empty() {
        writeln!(out, "{NO_PROCESSES}")?;
    }
    let columns = table.columns();
    let line = |cell: &dyn Fn(Column) -> String| {
        let cell = |column: &Column| format!("{:>1$}", cell(*column), usize::from(column.width()));
        columns.iter().map(cell).collect::<Vec<_>>().join(" ")
    };
    let kind = usize::from(KIND);
    writeln!(out, "{}  {:<kind$}  NAME", line(&|column| column.heading().to_owned()), "KIND")?;
    let Rows { shown, idle } =
        Rows::of(table.branches(args.processes), &RowFilter { all: args.all, ..RowFilter::default() });
    for row in shown.iter().take(args.rows) {
        writeln!(out, "{}  {:<kind$}  {}", line(&|column| column.text(&row.figures)), row.kind.as_str(), row.label())?;
    }
    let more = shown.len().saturating_sub(args.rows);
    if more > 0 {
        writeln!(out, "{more} more (--rows)")?;
    }
    if idle > 0 {
        writeln!(out, "{idle} idle (--all)")?;
    }
    out.flush()
}

/// Said where processes are asked for and the page has none.
const NO_PROCESSES: &str = "no processes: start the agent with --export.levels=node,pod,container,process";

/// One refresh.
struct Table {
    node: NodeFigures,
    workloads: Vec<Branch>,
    /// Empty where the agent does not export them.
    processes: Vec<Branch>,
}

impl Table {
    fn of(entries: Entries) -> Self {
        let (workloads, processes) = (tree::workloads(&entries), tree::processes(&entries));
        Self { node: entries.node, workloads, processes }
    }

    fn branches(&self, processes: bool) -> &[Branch] {
        if processes { &self.processes } else { &self.workloads }
    }

    fn columns(&self) -> &'static [Column] {
        Column::shown(self.node.gpus.is_some())
    }
}

/// A running agent, as far as its metrics page shows it.
struct Agent {
    page: AgentPage,
    memory: PreviousPage<EntryKey>,
}

impl Agent {
    fn new(args: &TopArgs) -> Result<Self> {
        Ok(Self { page: AgentPage::new(&args.address, &args.login)?, memory: PreviousPage::default() })
    }

    fn fetch(&mut self) -> Result<Table> {
        Ok(Table::of(Entries::read(&self.page.fetch()?, &mut self.memory)))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests panic")]

    use energy_export::parse;

    use super::*;
    use crate::config::Login;

    fn printed(page: &str, rows: usize, all: bool) -> String {
        let samples = parse::samples(page).unwrap();
        let table = Table::of(Entries::read(&samples, &mut PreviousPage::default()));
        let args = TopArgs {
            address: String::new(),
            interval: Duration::ZERO,
            once: true,
            iterations: 0,
            rows,
            all,
            processes: false,
            login: Login::default(),
        };
        let mut out = Vec::new();
        write_plain(&mut out, &table, &args).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn plain_lines_are_aligned_and_say_what_is_left_out() {
        let page = "kepler_node_cpu_watts{zone=\"package\",source=\"estimate\",node_name=\"n\"} 5.000000\n\
             energy_agent_system_cpu_joules_total{unit=\"a.service\",zone=\"package\",source=\"estimate\"} 9000.000000\n\
             energy_agent_system_cpu_watts{unit=\"a.service\",zone=\"package\",source=\"estimate\"} 1.250000\n\
             energy_agent_system_cpu_watts{unit=\"b.service\",zone=\"package\",source=\"estimate\"} 0.000000\n\
             energy_agent_system_cpu_watts{unit=\"kernel\",zone=\"package\",source=\"estimate\"} 1.000000\n";
        let head = "n   package 5.00 W (estimated)\n\
             active -   idle -   unattributed -   CPU busy -\n\
             \x20TOTAL W    CPU%         Wh  KIND       NAME\n\
             \x20  1.250       -      2.500  group      services\n\
             \x20  1.250       -      2.500  unit         a.service\n";
        assert_eq!(printed(page, 2, false), format!("{head}1 more (--rows)\n1 idle (--all)\n"));
        assert_eq!(printed(page, 2, true), format!("{head}2 more (--rows)\n"));
    }

    #[test]
    fn plain_lines_have_gpus_where_there_are_any() {
        let page = "kepler_node_gpu_info{gpu_uuid=\"a\",gpu=\"0\"} 1\n\
             kepler_node_gpu_watts{gpu_uuid=\"a\",source=\"nvml\"} 264.000000\n\
             kepler_pod_gpu_watts{pod_id=\"u\",pod_name=\"p\",pod_namespace=\"ns\",source=\"nvml\"} 186.000000\n\
             kepler_pod_cpu_watts{pod_id=\"u\",pod_name=\"p\",pod_namespace=\"ns\",zone=\"package\",source=\"rapl\"} 1.250000\n";
        let expected = "node   no power reading yet (the agent's landing page shows its meters)\n\
             active -   idle -   unattributed -   CPU busy -\n\
             1 GPU  264.0 W (nvml)  active -  idle -  unattributed -\n\
             GPU 0     264.0 of - W    - %        - of - GiB    - C     - MHz  \n\
             \x20TOTAL W    CPU W    GPU W    CPU%         Wh  KIND       NAME\n\
             \x20  187.2    1.250    186.0       -          -  namespace  ns\n\
             \x20  187.2    1.250    186.0       -          -  pod          p\n";
        assert_eq!(printed(page, 9, false), expected);
    }
}
