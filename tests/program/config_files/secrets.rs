//! Any file may be named by mistake, or by a link that somebody else has set: what it holds shows nowhere.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::Command;

use axum::http::Request;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use kube::api::{DeleteParams, ObjectMeta, PostParams};
use serde_json::Value;
use tempfile::TempDir;

use super::*;
use crate::common::agent::PROGRAM;
use crate::common::kubernetes::node::Node;
use crate::common::kubernetes::server::runtime;

const CANARY: &str = "S3CR3T";

/// Files of many kinds, whole and broken, each with the secret in all its places.
fn texts() -> Vec<Vec<u8>> {
    let texts = [
        // Lines, pairs, YAML of every kind.
        "%",
        "%: 1\n",
        "% = %\n",
        "token: %\n",
        "TOKEN=%\n",
        "root:%:19000:0:99999:7:::\ndaemon:*:%:0:99999:7:::\n",
        "- %\n- [%]\n",
        "\"%",
        "'%\n'% : %",
        "{%: %",
        "[%, {%",
        "a: [%}\n",
        "? %\n: %\n: %\n",
        "a: !% 1\n",
        "!<%> %\n",
        "a: *%\n",
        "a: &% *%\n",
        "%%YAML %\n---\n%",
        "a: |%\n  %\n",
        "a:\n\t%: %\n",
        "%: 1\n%: 2\n",
        "<<: %\n%: {<<: %}\n",
        "a: 1\n---\n%: 2\n",
        "policy: %\n%: 1\n",
        "version: %\n%: %\n",
        "apiVersion: v1\nkind: Secret\ndata: {%: %}\n",
        "apiVersion: %\nkind: %!\n",
        // JSON.
        "{\"%\": \"%\"}",
        "{\"average\": \"%\", \"%\": 1}",
        "{\"average\": {\"min_watts\": \"%\", \"max_watts\": 1}}",
        "{\"version\": 1, \"boot_id\": {\"%\": \"%\"}, \"zones\": \"%\"}",
        "{\"%\": 1",
        // PEM.
        "-----BEGIN PRIVATE KEY-----\n%\n",
        "-----BEGIN PRIVATE KEY-----\n%%%\n-----END PRIVATE KEY-----\n",
        "-----BEGIN CERTIFICATE-----\n%!\n-----END CERTIFICATE-----\n",
        "-----BEGIN %\n%\n-----END %\n",
        // Kubeconfigs.
        "apiVersion: v1\nkind: Config\nusers:\n- name: a\n  user:\n    token: %\n   %: 1\n",
        "clusters: %\ncontexts: 7\nusers: [{name: %, user: {token: %}}]\n",
        "current-context: %\nusers: [{name: %, user: {token: %}}]\n",
        "current-context: a\ncontexts: [{name: a, context: {cluster: %, user: %}}]\n",
        "current-context: a\ncontexts: [{name: a, context: {cluster: a}}]\nclusters: [{name: a, cluster: {server: 'a b:%'}}]\n",
        "current-context: a\ncontexts: [{name: a, context: {cluster: a, user: a}}]\nclusters: [{name: a, cluster: {server: 'https://[::1]:1', \
         certificate-authority-data: '%!'}}]\nusers: [{name: a, user: {client-key-data: '%!', client-certificate-data: '%!'}}]\n",
        // Web configurations, and exports.
        "tls_server_config: %\n",
        "tls_server_config: {min_version: %}\n",
        "tls_server_config: {cert: %, key: %}\n",
        "tls_server_config: {cert: '-----BEGIN %', key: '-----BEGIN %'}\n",
        "tls_server_config:\n  key: |\n  %\n",
        "basic_auth_users: {a: %}\n",
        "basic_auth_users: [%]\n",
        "http_server_config: {headers: {X-Frame-Options: %}}\n",
        "EXPORT_METRICS: node\n%\n",
        // A journal.
        "{\"sum\":\"00000000\",\"actuator\":\"%\",\"device\":\"%\"}\n%\n",
    ];
    let texts = texts.iter().map(|text| text.replace('%', CANARY).into_bytes());
    texts.chain([[CANARY.as_bytes(), &[0xff, b'\n'], CANARY.as_bytes()].concat()]).collect()
}

/// Every kind of file leads by a link to the one with the secret.
struct Links {
    folder: TempDir,
}

impl Links {
    fn new() -> Self {
        let folder = TempDir::new().unwrap();
        for name in ["idle.json", "capping-journal.jsonl", "policies.yaml", "web.yaml", "kubeconfig", "other"] {
            symlink("secret", folder.path().join(name)).unwrap();
        }
        let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
        write("tls.yaml", "tls_server_config: {cert_file: other, key_file: other}\n");
        let context = "current-context: a\ncontexts: [{name: a, context: {cluster: a, user: a}}]\n\
                       clusters: [{name: a, cluster: {server: 'https://[::1]:1'CA}}]\nusers: [{name: a, user: {USER}}]\n";
        let kubeconfig =
            |authority: &str, user: &str| context.replace("'CA", &format!("'{authority}")).replace("USER", user);
        write("token.kubeconfig", &kubeconfig("", "tokenFile: other"));
        write("ca.kubeconfig", &kubeconfig(", certificate-authority: other", "token: a"));
        write("key.kubeconfig", &kubeconfig("", "client-certificate: other, client-key: other"));
        write("plain.kubeconfig", &kubeconfig("", "token: a"));
        Self { folder }
    }

    fn at(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn flag(&self, flag: &str, name: &str) -> String {
        format!("--{flag}={}", self.at(name).display())
    }
}

/// All that a command prints, by both ways.
fn printed(arguments: &[&str]) -> String {
    let output = Command::new(PROGRAM).args(arguments).output().unwrap();
    let [out, errors] = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    format!("{arguments:?}: {out}{errors}")
}

fn assert_silent(text: &[u8], said: &str) {
    assert!(!said.contains(CANARY), "of {:?} this is repeated: {said}", String::from_utf8_lossy(text));
}

#[test]
fn commands_repeat_nothing_of_a_file_that_they_cannot_use() {
    let links = Links::new();
    let [policies, state, web, tls, estimate] = [
        ("capping.policy", "policies.yaml"),
        ("state.directory", ""),
        ("web.config.file", "web.yaml"),
        ("web.config.file", "tls.yaml"),
        ("meter.estimate-coefficients", "other"),
    ]
    .map(|(flag, name)| links.flag(flag, name));
    let configs = ["kubeconfig", "token.kubeconfig", "ca.kubeconfig", "key.kubeconfig"]
        .map(|name| links.flag("kubeconfig", name));
    let (authority, plain) = (links.flag("pods.kubelet-ca", "other"), links.flag("kubeconfig", "plain.kubeconfig"));
    let tops = [("tls.ca-file", None), ("tls.cert-file", Some("tls.key-file"))].map(|(one, two)| {
        [Some(one), two].into_iter().flatten().map(|flag| links.flag(flag, "other")).collect::<Vec<_>>()
    });
    let doctor = |flags: &[&str]| {
        printed(&[&["doctor", "--ebpf=off", "--gpu=off", "--web.listen-address=127.0.0.1:0"], flags].concat())
    };
    for text in texts() {
        fs::write(links.at("secret"), &text).unwrap();
        assert_silent(&text, &printed(&["policy", "check", links.at("policies.yaml").to_str().unwrap()]));
        assert_silent(&text, &printed(&["restore", &state]));
        assert_silent(&text, &printed(&["restore", "--dry-run", &state]));
        let capping = ["--capping=on", &policies, &state, &estimate, "--meter.cpu=estimate"];
        assert_silent(&text, &doctor(&[&capping[..], &[&web, "--pods.source=api", &configs[0]]].concat()));
        assert_silent(&text, &doctor(&[&tls, "--pods.source=api", &configs[1]]));
        for config in &configs[2..] {
            assert_silent(&text, &doctor(&["--pods.source=api", config]));
        }
        assert_silent(&text, &doctor(&["--pods.source=kubelet", &authority, &plain]));
        for flags in &tops {
            let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
            assert_silent(&text, &printed(&[&["top", "https://127.0.0.1:1", "--iterations=1"], &flags[..]].concat()));
        }
        // Some of them are valid web configurations: the port is one that cannot be bound.
        for web in [&web, &tls] {
            let start = ["run", "--ebpf=off", "--gpu=off", "--web.listen-address=192.0.2.1:1", web, &state];
            assert_silent(&text, &printed(&start));
        }
    }
}

#[test]
fn pages_and_the_log_repeat_nothing_of_a_file_that_the_agent_follows() {
    for text in texts() {
        let links = Links::new();
        fs::write(links.at("secret"), &text).unwrap();
        // Its own journal lies elsewhere; what was learned may be anything.
        let state = TempDir::new().unwrap();
        symlink(links.at("secret"), state.path().join("idle.json")).unwrap();
        let mut agent = Agent::start(&[
            "--ebpf=off",
            "--gpu=off",
            "--interval=1s",
            "--capping=on",
            "--pods.source=api",
            &links.flag("capping.policy", "policies.yaml"),
            &links.flag("export.config", "other"),
            &links.flag("kubeconfig", "kubeconfig"),
            &format!("--state.directory={}", state.path().display()),
        ]);
        // Each of them was looked at.
        wait_for("the policies' state", || {
            let status = agent.policies();
            (status["sources"][0]["reason"] != "connecting").then_some(())
        });
        wait_for("the API server's state", || {
            let meters = agent.scrape();
            let pods = meters.select("energy_agent_meter_up", &[("meter", "pods")]);
            (pods.iter().any(|sample| sample.label("reason") != "connecting")).then_some(())
        });
        for path in ["/", "/metrics", "/policies", "/policies?format=html"] {
            let mut page = ureq::get(format!("http://{}{path}", agent.address)).call().unwrap();
            assert_silent(&text, &format!("{path}: {}", page.body_mut().read_to_string().unwrap()));
        }
        assert_silent(&text, &agent.log().join("\n"));
        agent.assert_well();
    }
}

/// Refusals are Events too: of the Node for a file, and of a ConfigMap. Of 25 at once none is dropped.
#[test]
fn events_repeat_nothing_of_a_document_that_is_refused() {
    for texts in texts().chunks(10) {
        let (node, folder) = (Node::new(), TempDir::new().unwrap());
        let (name, mut data) = (format!("canary-{}", node.name), BTreeMap::new());
        for (number, text) in texts.iter().enumerate() {
            fs::write(folder.path().join(format!("secret-{number}")), text).unwrap();
            symlink(format!("secret-{number}"), folder.path().join(format!("{number}.yaml"))).unwrap();
            data.extend(String::from_utf8(text.clone()).ok().map(|text| (format!("key-{number}"), text)));
        }
        let metadata = ObjectMeta { name: Some(name.clone()), ..ObjectMeta::default() };
        let map = ConfigMap { metadata, data: Some(data.clone()), ..ConfigMap::default() };
        let maps: Api<ConfigMap> = Api::namespaced(node.cluster.client.clone(), "default");
        runtime().block_on(maps.create(&PostParams::default(), &map)).unwrap();
        let agent = node.agent_without_names(&[
            "--ebpf=off",
            "--gpu=off",
            "--interval=1s",
            "--capping=on",
            &format!("--capping.policy={}", folder.path().display()),
            &format!("--capping.configmap=default/{name}"),
        ]);
        let places = (0..texts.len()).map(|number| format!("file {}/{number}.yaml: ", folder.path().display()));
        let keys = data.keys().map(|key| format!("ConfigMap default/{name} key {key}: "));
        let mut missing: Vec<String> = places.chain(keys).collect();
        wait_for("an event about each document", || {
            for event in events(&node) {
                assert_silent(&texts.concat(), &event.to_string());
                let note = event["note"].as_str().unwrap();
                missing.retain(|place| !note.contains(place));
            }
            Some(()).filter(|()| missing.is_empty())
        });
        let page = agent.scrape();
        assert_eq!(page.one("energy_agent_capping_events_total", &[("result", "dropped")]).value, "0");
        runtime().block_on(maps.delete(&name, &DeleteParams::default())).unwrap();
    }
}

/// All events that the node's agent has written.
fn events(node: &Node) -> Vec<Value> {
    let request = Request::get("/apis/events.k8s.io/v1/events").body(Vec::new()).unwrap();
    let list: Value = runtime().block_on(node.cluster.client.request(request)).unwrap();
    let mut all = list["items"].as_array().unwrap().clone();
    all.retain(|event| event["reportingInstance"] == *node.name);
    all
}

/// What is the agent's own is named all the same: a key of its documents that is misspelt.
#[test]
fn an_unknown_key_is_named_beside_keys_that_are_known() {
    let folder = TempDir::new().unwrap();
    let check = |text: &str| {
        let file = folder.path().join("policies.yaml");
        fs::write(&file, text).unwrap();
        printed(&["policy", "check", file.to_str().unwrap()])
    };
    let long = "k".repeat(70);
    let said = check(&format!("version: 1\npolicies: []\n{long}: 1\n\"\\e[2J\": 1\n"));
    assert!(
        said.contains(&format!("{}…: unknown key; valid are version, policies (line 3)", "k".repeat(64))),
        "{said}"
    );
    assert!(said.contains("\\u{1b}[2J: unknown key"), "{said}");
    let said = check("polices: []\nversion: 1\n");
    assert!(said.contains("not a policy document: it has no key `policies`; is it the key in line 1?"), "{said}");
}
