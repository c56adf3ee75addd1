//! `--refine`: a sweep goes on between the clocks of its first round.

use std::fs;

use energy_report::run::Run;
use fake_nvml::state::Clocks;

use super::{Node, STEP, joules, said, steep, steep_card};

#[test]
fn a_refined_sweep_tries_clocks_beside_the_best_and_ends_within_a_step_of_the_optimum() {
    let node = Node::new(steep_card());
    let file = node.state.path().join("sweep.json");
    let json = format!("--json={}", file.display());
    let output = node.sweep(&["-r", "1", "--gpu-clocks=495..1980/4", "--refine", &json]).output().unwrap();
    let (code, text, errors) = said(&output);
    assert_eq!(code, Some(0), "{text}{errors}");
    let clocks = |runs: &[Run]| -> Vec<u32> {
        runs.iter().filter_map(|run| run.labels.get("gpu-clock-mhz")?.parse().ok()).collect()
    };
    let runs: Vec<Run> = serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
    let tried = clocks(&runs);
    let (first, refined) = tried.split_at(4);
    let mut first = first.to_vec();
    first.sort_unstable();
    assert_eq!(first, [495, 990, 1485, 1980]);
    // 100 W and 500 W * x^6 for 1 / x: least at x = (100 / (500 * 5))^(1/6) = 0.585, 1158 MHz; the nearest step is 1155 MHz.
    let steps = (495..=1980).step_by(usize::try_from(STEP).unwrap());
    let truth = steps.min_by(|a, b| joules(&steep(), *a).total_cmp(&joules(&steep(), *b)));
    assert_eq!(truth, Some(1155));
    assert!(!refined.is_empty() && refined.iter().all(|mhz| mhz.is_multiple_of(STEP) && *mhz % 495 != 0), "{tried:?}");
    let best: u32 = super::best(&text).split(' ').next().unwrap().parse().unwrap();
    assert!(best.abs_diff(1155) <= STEP, "{tried:?} {text}");
    assert_eq!(Clocks::default().max_mhz, 1980);
    assert_eq!(node.locked(), None, "what was is back");
}
