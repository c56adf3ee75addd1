//! `energy-agent top`: fetches the metrics page of a running agent and shows who uses how much, as a live table on a
//! terminal and as plain lines elsewhere.

mod node;
mod screen;
mod table;

use std::io::{self, ErrorKind, IsTerminal as _, Write};
use std::time::Duration;

use anyhow::Result;

use self::table::{Column, Order, PreviousPage, Table};
use super::agent_page::AgentPage;
use crate::config::TopArgs;

/// Shows the agent at `args.address` until the user quits, or for `args.iterations` refreshes.
///
/// # Errors
/// When the address is none, nothing answers there at the start, what answers is no agent, or, in plain lines, it
/// stops answering.
pub fn run(args: &TopArgs) -> Result<()> {
    let mut agent = Agent::new(args)?;
    let interval = args.interval.max(Duration::from_millis(100));
    let first = agent.fetch()?;
    if args.iterations == 0 && io::stdout().is_terminal() && io::stdin().is_terminal() {
        return screen::run(agent, first, interval);
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
    let mut shown = 0;
    loop {
        table.sort(Order::Watts);
        write_plain(&mut out, &table, args.rows)?;
        shown += 1;
        if shown == args.iterations {
            return Ok(());
        }
        writeln!(out)?;
        std::thread::sleep(interval);
        table = agent.fetch()?;
    }
}

/// One refresh as aligned lines: the node, a heading, and at most `rows` entries.
fn write_plain(out: &mut impl Write, table: &Table, rows: usize) -> io::Result<()> {
    writeln!(out, "{}\n{}", table.node.meters(), table.node.shares())?;
    if let Some(gpus) = &table.node.gpus {
        writeln!(out, "{}", gpus.line())?;
    }
    let line = |cell: &dyn Fn(Column) -> String| {
        let cell = |column: &Column| format!("{:>1$}", cell(*column), width(*column));
        table.columns().iter().map(cell).collect::<Vec<_>>().join(" ")
    };
    writeln!(out, "{}  {:<9}  NAME", line(&|column| column.heading().to_owned()), "KIND")?;
    for entry in table.entries.iter().take(rows) {
        writeln!(out, "{}  {:<9}  {}", line(&|column| entry.number(column)), entry.kind.as_str(), entry.name)?;
    }
    let more = table.entries.len().saturating_sub(rows);
    if more > 0 {
        writeln!(out, "{more} more (--rows)")?;
    }
    out.flush()
}

/// Characters of a column in plain lines.
const fn width(column: Column) -> usize {
    match column {
        Column::Watts | Column::GpuWatts => 10,
        Column::Joules => 14,
        Column::Cpu => 7,
    }
}

/// A running agent, as far as its metrics page shows it.
struct Agent {
    page: AgentPage,
    memory: PreviousPage,
}

impl Agent {
    fn new(args: &TopArgs) -> Result<Self> {
        Ok(Self { page: AgentPage::new(&args.address, &args.login)?, memory: PreviousPage::default() })
    }

    fn fetch(&mut self) -> Result<Table> {
        Ok(Table::read(&self.page.fetch()?, &mut self.memory))
    }
}

#[cfg(test)]
mod tests {
    use energy_export::parse;

    use super::*;

    #[test]
    fn plain_lines_are_aligned_and_say_what_is_left_out() {
        let page = "kepler_node_cpu_watts{zone=\"package\",source=\"estimate\",node_name=\"n\"} 5.000000\n\
             energy_agent_system_cpu_joules_total{unit=\"a.service\",zone=\"package\",source=\"estimate\"} 2.500000\n\
             energy_agent_system_cpu_watts{unit=\"a.service\",zone=\"package\",source=\"estimate\"} 1.250000\n\
             energy_agent_system_cpu_joules_total{unit=\"kernel\",zone=\"package\",source=\"estimate\"} 1.000000\n";
        let mut table = Table::read(&parse::samples(page).unwrap(), &mut PreviousPage::default());
        table.sort(Order::Watts);
        let mut out = Vec::new();
        write_plain(&mut out, &table, 1).unwrap();
        let expected = "n   package 5.00 W (estimated)\n\
             active -   idle -   unattributed -   CPU busy -\n\
             \x20    WATTS         JOULES    CPU%  KIND       NAME\n\
             \x20    1.250            2.5       -  unit       a.service\n\
             1 more (--rows)\n";
        assert_eq!(String::from_utf8(out).unwrap(), expected);
    }

    #[test]
    fn plain_lines_have_gpus_where_there_are_any() {
        let page = "kepler_node_gpu_info{gpu_uuid=\"a\"} 1\nkepler_node_gpu_watts{gpu_uuid=\"a\",source=\"nvml\"} 264.000000\n\
             kepler_pod_gpu_watts{pod_id=\"u\",source=\"nvml\"} 186.000000\n\
             kepler_pod_cpu_watts{pod_id=\"u\",zone=\"package\",source=\"rapl\"} 1.250000\n";
        let table = Table::read(&parse::samples(page).unwrap(), &mut PreviousPage::default());
        let mut out = Vec::new();
        write_plain(&mut out, &table, 1).unwrap();
        let expected = "node   no power reading yet (the agent's landing page shows its meters)\n\
             active -   idle -   unattributed -   CPU busy -\n\
             1 GPU  264.0 W (nvml)  active -  idle -  unattributed -\n\
             \x20    WATTS  GPU WATTS         JOULES    CPU%  KIND       NAME\n\
             \x20    1.250    186.000              -       -  pod        u\n";
        assert_eq!(String::from_utf8(out).unwrap(), expected);
    }
}
