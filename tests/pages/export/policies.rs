//! What `/policies` says to programs and to people.

use energy_model::snapshot::Snapshot;
use serde_json::{Value, json};

use super::capping::GPU;
use super::server::Server;
use super::world::{published, rich};

fn server() -> Server {
    Server::start(published(rich()))
}

#[test]
fn a_program_gets_the_policies_as_json_in_base_units() {
    let server = server();
    for headers in [&[][..], &[("Accept", "*/*")], &[("Accept", "application/json")]] {
        let answer = server.get("/policies", headers);
        assert_eq!((answer.status, answer.headers["content-type"].as_str()), (200, "application/json"));
        let told: Value = serde_json::from_slice(&answer.body).unwrap();
        let subject = &told["policies"][1]["subjects"][0];
        assert_eq!(
            *subject,
            json!({
                "pod": {"uid": "u1", "namespace": "ml", "name": "train-0"}, "state": "capping", "reason": null, "budget_watts": 250.0,
                "power_watts": 262.5, "headroom_watts": -12.5, "ceiling_ratio": 0.75, "over_budget_seconds": 12.5,
                "over_budget_joules": 431.0,
                "limits": [{"actuator": "gpu_locked_clocks", "device": GPU}],
            })
        );
        assert_eq!(told["policies"][0]["subjects"][0]["pod"], Value::Null);
        assert_eq!(told["policies"][1]["subjects"][1]["power_watts"], Value::Null);
        assert_eq!(
            told["policies"][0]["conflicts"][0],
            json!({
                "pod": {"uid": "u1", "namespace": "ml", "name": "train-0"}, "component": "gpu",
                "winner": {"namespace": "", "name": "train-cap"},
            })
        );
        assert_eq!(
            told["limits"][1],
            json!({
                "actuator": "gpu_power_limit", "device": GPU, "unit": "watts", "state": "ok",
                "policy": {"namespace": "", "name": "train-cap"}, "wanted": 300.0, "found": 300.0, "original": 700.0,
                "clamped": false, "detail": null, "writes": {"ok": 7, "failed": 1, "restored": 2, "deferred": 3},
            })
        );
        assert_eq!(told["limits"][0]["wanted"], 1_215_000_000);
        assert_eq!(told["problems"][0]["kept"], true);
        assert_eq!(
            told["sources"],
            json!([{"source": "ConfigMap energy/<policies>", "up": false, "reason": "forbidden", "detail": "<no> permission"}])
        );
        assert_eq!(
            [&told["node"], &told["restore_pending"], &told["restore_failures"]],
            [&json!("node-a"), &json!(1), &json!(2)]
        );
    }
}

#[test]
fn a_browser_gets_a_page_on_which_nothing_is_taken_for_markup() {
    let server = server();
    let accept = [("Accept", "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8")];
    let answer = server.get("/policies", &accept);
    assert_eq!((answer.status, answer.headers["content-type"].as_str()), (200, "text/html; charset=utf-8"));
    let page = String::from_utf8(answer.body).unwrap();
    for part in [
        "train-cap",
        "capping",
        "250.0 W",
        "262.5 W",
        "1215 MHz",
        "1305 MHz",
        "2.5 CPUs",
        "yielded",
        "700.0 W",
        "&lt;night&gt;.yaml",
        "&quot;&lt;b&gt;&quot; is no number",
        "the previous version stays active",
        "&lt;no&gt; permission",
        "no &lt;power&gt; of a GPU",
    ] {
        assert!(page.contains(part), "{part} is not on {page}");
    }
    for markup in ["<night>", "<no>", "<policies>", "\"<b>", "&quot;<b>", "<script", "http://", "https://"] {
        assert!(!page.contains(markup), "{markup} is on {page}");
    }
    // A person who asks by hand decides.
    let json = server.get("/policies?format=json", &accept);
    assert_eq!(json.headers["content-type"], "application/json");
    let landing = String::from_utf8(server.get("/", &[]).body).unwrap();
    assert!(landing.contains("href=\"/policies\""), "{landing}");
}

#[test]
fn with_capping_off_there_are_no_series_and_the_page_says_how_to_turn_it_on() {
    let off = Snapshot { capping: None, ..rich() };
    let server = Server::start(published(off));
    let answer = server.get("/policies", &[]);
    assert_eq!(answer.status, 404);
    assert!(String::from_utf8(answer.body).unwrap().contains("capping is off (--capping=off)"));
    let page = String::from_utf8(server.get("/metrics", &[]).body).unwrap();
    assert!(!page.contains("energy_agent_policy_") && !page.contains("energy_agent_cap_"));
    let landing = String::from_utf8(server.get("/", &[]).body).unwrap();
    assert!(!landing.contains("href=\"/policies\""), "{landing}");
}
