//! A tree into the rows that are shown: in order, as deep as asked for, without what is idle or does not match a search.

use std::cmp::Ordering;

use super::figures::{Column, Figures};
use super::tree::{Branch, RowKind};

/// By what siblings are ordered; the largest first, names from A to Z.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    By(Column),
    Name,
}

/// What of a tree is shown.
#[derive(Clone, Debug)]
pub struct RowFilter {
    pub order: Order,
    /// Rows deeper than this are left out; `None` shows all.
    pub depth: Option<usize>,
    /// Part of a name, in small letters; empty for all.
    pub search: String,
    /// Also what is idle.
    pub all: bool,
}

impl Default for RowFilter {
    fn default() -> Self {
        Self { order: Order::By(Column::Total), depth: None, search: String::new(), all: false }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    pub depth: usize,
    pub kind: RowKind,
    pub name: String,
    pub figures: Figures,
    pub ended: bool,
}

impl Row {
    /// Indented by its depth.
    pub fn label(&self) -> String {
        let Self { depth, name, ended, .. } = self;
        format!("{:1$}{name}{2}", "", depth * 2, if *ended { " (ended)" } else { "" })
    }
}

/// What is shown, and how many rows are not because they are idle.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rows {
    pub shown: Vec<Row>,
    pub idle: usize,
}

impl Rows {
    pub fn of(branches: &[Branch], view: &RowFilter) -> Self {
        let mut rows = Self::default();
        rows.add(branches, view, 0, false);
        rows
    }

    /// `found`: a row around them matches the search.
    fn add(&mut self, branches: &[Branch], view: &RowFilter, depth: usize, found: bool) {
        let mut siblings: Vec<&Branch> = branches.iter().collect();
        siblings.sort_by(|a, b| compare(a, b, view.order));
        for branch in siblings {
            let Branch { kind, name, figures, ended, children } = branch;
            let found = found || matches(branch, &view.search);
            if !view.search.is_empty() {
                // A search finds what is idle or deep, too.
                if found || children.iter().any(|child| holds(child, &view.search)) {
                    self.shown.push(Row { depth, kind: *kind, name: name.clone(), figures: *figures, ended: *ended });
                    self.add(children, view, depth + 1, found);
                }
                continue;
            }
            if !view.all && is_hidden(figures, view.order) {
                self.idle += 1 + count(children);
                continue;
            }
            self.shown.push(Row { depth, kind: *kind, name: name.clone(), figures: *figures, ended: *ended });
            if view.depth.is_none_or(|deepest| depth < deepest) {
                self.add(children, view, depth + 1, false);
            }
        }
    }
}

/// Whoever orders by energy looks for what was used before, too.
fn is_hidden(figures: &Figures, order: Order) -> bool {
    figures.is_idle() && !(order == Order::By(Column::WattHours) && figures.used_energy())
}

fn matches(branch: &Branch, search: &str) -> bool {
    !search.is_empty() && branch.name.to_lowercase().contains(search)
}

fn holds(branch: &Branch, search: &str) -> bool {
    matches(branch, search) || branch.children.iter().any(|child| holds(child, search))
}

fn count(branches: &[Branch]) -> usize {
    branches.iter().map(|branch| 1 + count(&branch.children)).sum()
}

fn compare(a: &Branch, b: &Branch, order: Order) -> Ordering {
    let first = match order {
        Order::By(column) => {
            let [a, b] = [a, b].map(|branch| column.value(&branch.figures));
            b.partial_cmp(&a).unwrap_or(Ordering::Equal)
        }
        Order::Name => Ordering::Equal,
    };
    first.then_with(|| a.name.cmp(&b.name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn branch(name: &str, watts: Option<f64>, joules: f64, children: Vec<Branch>) -> Branch {
        let figures = Figures { cpu_watts: watts, joules: Some(joules), cpu_percent: Some(0.0), ..Figures::default() };
        Branch { kind: RowKind::Unit, name: name.to_owned(), figures, ended: false, children }
    }

    fn world() -> Vec<Branch> {
        let leaf = |name, watts, joules| branch(name, Some(watts), joules, Vec::new());
        vec![
            branch("small", Some(1.0), 9000.0, vec![leaf("Inner", 1.0, 9000.0)]),
            branch("idle", Some(0.0), 7200.0, vec![leaf("idle-too", 0.0, 7200.0)]),
            branch("large", Some(5.0), 18.0, vec![leaf("b", 2.0, 9.0), leaf("a", 3.0, 9.0), leaf("never", 0.0, 0.0)]),
            branch("unknown", None, 0.0, Vec::new()),
        ]
    }

    fn shown(view: &RowFilter) -> (String, usize) {
        let Rows { shown, idle } = Rows::of(&world(), view);
        (shown.iter().map(|row| format!("{}{} ", row.depth, row.name)).collect(), idle)
    }

    #[test]
    fn siblings_are_ordered_and_what_is_idle_is_counted() {
        let by = |order| shown(&RowFilter { order, ..RowFilter::default() });
        assert_eq!(shown(&RowFilter::default()), ("0large 1a 1b 0small 1Inner ".to_owned(), 4));
        assert_eq!(by(Order::Name), ("0large 1a 1b 0small 1Inner ".to_owned(), 4));
        assert_eq!(by(Order::By(Column::WattHours)).0, "0small 1Inner 0idle 1idle-too 0large 1a 1b ");
        assert_eq!(shown(&RowFilter { all: true, ..RowFilter::default() }).1, 0);
        assert_eq!(shown(&RowFilter { depth: Some(0), ..RowFilter::default() }).0, "0large 0small ");
    }

    #[test]
    fn a_search_shows_what_matches_with_what_is_around_and_in_it() {
        let search =
            |text: &str| shown(&RowFilter { search: text.to_owned(), depth: Some(0), ..RowFilter::default() }).0;
        assert_eq!(search("inn"), "0small 1Inner ");
        assert_eq!(search("large"), "0large 1a 1b 1never ");
        assert_eq!(search("idle-"), "0idle 1idle-too ");
        assert_eq!(search("nothing"), "");
    }
}
