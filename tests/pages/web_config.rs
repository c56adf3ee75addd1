//! `--web.config.file` of the running program: certificates and their rotation, clients' certificates, users, headers,
//! and a real Prometheus that gets past all of them.

#![expect(clippy::unwrap_used, reason = "a test panics, its helpers too")]

pub mod certificates;
pub mod client;

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use std::{fs, thread};

use crate::common::agent::{self, Agent, PROGRAM, wait_for};
use crate::common::page::Page;
use crate::common::prometheus::Prometheus;
use certificates::{Authority, Pair};
use client::{Answer, Client, basic};
use tempfile::TempDir;
use tokio_rustls::rustls::ProtocolVersion;

/// libxcrypt's, of the passwords s3cret, n3w and other.
const S3CRET: &str = "$2y$10$abcdefghijklmnopqrstuu3KWNuWLhBnmgYfnzONPueahDuedC/lu";
const N3W: &str = "$2b$04$abcdefghijklmnopqrstuuX/7wHuG8BTr/ruEM9.x6Mg1Zhd7R0Ku";
const OTHER: &str = "$2a$11$abcdefghijklmnopqrstuu/MuAeqovAjO5.o12ibA2PqzRzMqv9iu";

const TLS: &str = "tls_server_config: {cert_file: tls.crt, key_file: tls.key}\n";

/// A folder with the file and what it names.
struct Files(TempDir);

impl Files {
    fn new(config: &str, pair: &Pair) -> Self {
        let files = Self(TempDir::new().unwrap());
        pair.write(files.folder());
        files.config(config);
        files
    }

    fn folder(&self) -> &Path {
        self.0.path()
    }

    fn config(&self, text: &str) {
        fs::write(self.folder().join("web.yaml"), text).unwrap();
    }

    fn flag(&self) -> String {
        format!("--web.config.file={}", self.folder().join("web.yaml").display())
    }

    fn agent(&self) -> Agent {
        Agent::spawn(&[PROGRAM], &["--ebpf=off", "--interval=200ms", &self.flag()])
    }

    fn replaced(&self, agent: &Agent, config: &str) {
        let before = agent.logged("web configuration loaded again").len();
        self.config(config);
        wait_for("the new configuration", || {
            (agent.logged("web configuration loaded again").len() > before).then_some(())
        });
    }
}

/// The metric that says whether the last version is in force.
fn valid(client: &Client, agent: &Agent) -> String {
    let mut connection = client.connect(&agent.address).unwrap();
    let page = connection.get("/metrics", "Accept: text/plain\r\n").unwrap();
    Page::parse(page.body).one("energy_agent_web_config_valid", &[]).value.clone()
}

/// FC-077.
#[test]
fn a_certificate_is_rotated_without_a_restart_and_a_bad_pair_changes_nothing() {
    let path = format!("{}/../tests/cases/FC-077-tls-rotation.json", env!("CARGO_MANIFEST_DIR"));
    let case: serde_json::Value = serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap();
    let steps: Vec<_> = case["steps"].as_array().unwrap().iter().map(|step| step["files"].as_str()).collect();
    let [None, Some("replaced by symlink swap"), Some(half), Some("certificate file truncated")] = steps[..] else {
        panic!("{steps:?}");
    };
    assert_eq!(half, "key replaced first, certificate 3 s later");

    // As a kubelet mounts a Secret: links through a folder that is changed in one step.
    let authority = Authority::new("one");
    let files = Files::new(TLS, &authority.server(1));
    let folder = files.folder();
    for (version, serial) in [("..1", 1), ("..2", 2)] {
        fs::create_dir(folder.join(version)).unwrap();
        authority.server(serial).write(&folder.join(version));
    }
    for name in ["tls.crt", "tls.key"] {
        fs::remove_file(folder.join(name)).unwrap();
        symlink(format!("..data/{name}"), folder.join(name)).unwrap();
    }
    symlink("..1", folder.join("..data")).unwrap();
    let mut agent = files.agent();
    let client = Client::trusting(&authority, None);
    let serial = || client.serial(&agent.address).unwrap();
    let mut first = client.connect(&agent.address).unwrap();
    assert_eq!((first.serial(), first.get("/healthz", "").unwrap().status), (1, 200));

    symlink("..2", folder.join("..new")).unwrap();
    fs::rename(folder.join("..new"), folder.join("..data")).unwrap();
    wait_for("certificate 2", || (serial() == 2).then_some(()));
    assert_eq!((first.serial(), first.get("/healthz", "").unwrap().status), (1, 200), "the old connection stays");

    // No handshake may fail while key and certificate are not of one pair.
    let stays = "the previous web configuration stays active: HTTPS";
    let third = authority.server(3);
    fs::write(folder.join("..2/tls.key"), &third.key).unwrap();
    wait_for("the warning", || {
        assert_eq!(serial(), 2);
        agent.logged(stays).into_iter().next()
    });
    for _ in 0..200 {
        assert_eq!(serial(), 2);
    }
    let is_valid = |wanted: &str| wait_for("the metric", || (valid(&client, &agent) == wanted).then_some(()));
    is_valid("0");
    fs::write(folder.join("..2/tls.crt"), &third.certificate).unwrap();
    wait_for("certificate 3", || (serial() == 3).then_some(()));
    is_valid("1");

    fs::write(folder.join("..2/tls.crt"), &third.certificate[..third.certificate.len() / 2]).unwrap();
    wait_for("the second warning", || agent.logged(stays).into_iter().nth(1));
    is_valid("0");
    assert_eq!(serial(), 3);
    let warnings = agent.assert_logged(stays, 2);
    assert!(warnings.iter().all(|line| line.contains("tls.crt") && line.contains("WARN")), "{warnings:#?}");
    agent.assert_well();
}

#[test]
fn a_pipe_in_place_of_the_certificate_is_not_waited_for() {
    let authority = Authority::new("one");
    let files = Files::new(TLS, &authority.server(1));
    let mut agent = files.agent();
    let client = Client::trusting(&authority, None);
    let certificate = files.folder().join("tls.crt");
    fs::remove_file(&certificate).unwrap();
    assert!(Command::new("mkfifo").arg(&certificate).status().unwrap().success());
    wait_for("the warning", || agent.logged("tls.crt: a pipe, not a regular file").pop());
    wait_for("the metric", || (valid(&client, &agent) == "0").then_some(()));
    assert_eq!(client.serial(&agent.address).unwrap(), 1, "the previous certificate stays");
    fs::remove_file(&certificate).unwrap();
    authority.server(2).write(files.folder());
    wait_for("certificate 2", || (client.serial(&agent.address).unwrap() == 2).then_some(()));
    wait_for("the metric", || (valid(&client, &agent) == "1").then_some(()));
    agent.assert_well();
}

/// FC-077.
#[test]
fn plain_http_to_the_tls_port_is_answered_with_a_clear_400() {
    let authority = Authority::new("one");
    let mut agent = Files::new(TLS, &authority.server(1)).agent();
    let mut plain = TcpStream::connect(&agent.address).unwrap();
    // More than is looked at, so that an early end would show as a reset.
    write!(plain, "GET /metrics HTTP/1.1\r\nHost: x\r\nX-Long: {}\r\n\r\n", "x".repeat(10_000)).unwrap();
    let answer = Answer::read(&mut plain).unwrap();
    assert_eq!((answer.status, answer.body.as_str()), (400, "Client sent an HTTP request to an HTTPS server.\n"));
    assert_eq!(plain.read(&mut [0; 8]).unwrap(), 0);
    let mut noise = TcpStream::connect(&agent.address).unwrap();
    noise.write_all(&[22, 3, 1, 0, 4, 9, 9, 9, 9]).unwrap();
    noise.read_to_end(&mut Vec::new()).unwrap_or_default();
    assert_eq!(Client::trusting(&authority, None).get(&agent.address, "/healthz", "").unwrap().status, 200);
    assert_eq!(agent.logged("WARN").into_iter().filter(|line| line.contains("TLS")).count(), 0);
    agent.assert_well();
}

#[test]
fn clients_that_say_nothing_hold_up_nobody_and_are_let_go() {
    let authority = Authority::new("one");
    let agent = Files::new(TLS, &authority.server(1)).agent();
    let mut silent: Vec<_> = (0..40).map(|_| TcpStream::connect(&agent.address).unwrap()).collect();
    // The beginning of a handshake that never goes on.
    silent[0].write_all(&[22, 3, 1, 2, 0, 1]).unwrap();
    assert_eq!(Client::trusting(&authority, None).get(&agent.address, "/healthz", "").unwrap().status, 200);
    for stream in &mut silent[..2] {
        stream.set_read_timeout(Some(Duration::from_secs(40))).unwrap();
        assert_eq!(stream.read(&mut [0; 8]).unwrap(), 0, "closed by the agent");
    }
}

/// FC-077. What is expected is what Go's documentation of ClientAuthType says.
#[test]
fn each_client_auth_type_takes_the_clients_that_it_should() {
    let (authority, strangers) = (Authority::new("one"), Authority::new("two"));
    let files = Files::new(TLS, &authority.server(1));
    fs::write(files.folder().join("ca.crt"), authority.pem()).unwrap();
    let agent = files.agent();
    let clients = [
        ("none", None),
        ("own", Some(authority.client())),
        ("strange", Some(strangers.client())),
        ("expired", Some(authority.expired_client())),
    ];
    let clients = clients.map(|(name, pair)| (name, Client::trusting(&authority, pair.as_ref())));
    let taken = || -> Vec<_> {
        let gets =
            |client: &Client| client.get(&agent.address, "/healthz", "").is_ok_and(|answer| answer.status == 200);
        clients.iter().filter(|(_, client)| gets(client)).map(|(name, _)| *name).collect()
    };
    assert_eq!(taken(), ["none", "own", "strange", "expired"], "NoClientCert");
    let all_but_none = ["own", "strange", "expired"];
    for (kind, ca, expected) in [
        ("RequestClientCert", "", &["none", "own", "strange", "expired"][..]),
        ("RequireAnyClientCert", "", &all_but_none),
        ("VerifyClientCertIfGiven", ", client_ca_file: ca.crt", &["none", "own"]),
        ("RequireAndVerifyClientCert", ", client_ca_file: ca.crt", &["own"]),
    ] {
        files.replaced(&agent, &TLS.replace('}', &format!(", client_auth_type: {kind}{ca}}}")));
        assert_eq!(taken(), expected, "{kind}");
    }
    for (names, expected) in [
        ("scraper.example", &["own", "strange", "expired"][..]),
        ("10.1.2.3", &["own", "strange"]),
        ("'spiffe://example/scraper', other.example", &["own", "strange"]),
        ("example, '*.example', 'spiffe://example', 10.1.2.4", &[]),
    ] {
        let sans = format!(", client_auth_type: RequireAnyClientCert, client_allowed_sans: [{names}]}}");
        files.replaced(&agent, &TLS.replace('}', &sans));
        assert_eq!(taken(), expected, "{names}");
    }
    // The authority is followed as well.
    let required = ", client_auth_type: RequireAndVerifyClientCert, client_ca_file: ca.crt}";
    files.replaced(&agent, &TLS.replace('}', required));
    assert_eq!(taken(), ["own"]);
    let before = agent.logged("loaded again").len();
    fs::write(files.folder().join("ca.crt"), strangers.pem()).unwrap();
    wait_for("the new authority", || (agent.logged("loaded again").len() > before).then_some(()));
    assert_eq!(taken(), ["strange"]);
}

#[test]
fn versions_of_tls_are_those_asked_for() {
    let authority = Authority::new("one");
    let files = Files::new(TLS, &authority.server(1));
    let agent = files.agent();
    let client = Client::trusting(&authority, None);
    let version = || client.connect(&agent.address).unwrap().version();
    assert_eq!(version(), ProtocolVersion::TLSv1_3);
    let suite = "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384";
    files.replaced(&agent, &TLS.replace('}', &format!(", max_version: TLS12, cipher_suites: [{suite}]}}")));
    assert_eq!(version(), ProtocolVersion::TLSv1_2);
    // The certificate has an ECDSA key: there is nothing to agree on.
    files.replaced(
        &agent,
        &TLS.replace('}', &format!(", max_version: TLS12, cipher_suites: [{}]}}", suite.replace("ECDSA", "RSA"))),
    );
    assert!(client.connect(&agent.address).is_err());
}

#[test]
fn every_path_asks_for_a_user_and_every_answer_has_the_headers() {
    let authority = Authority::new("one");
    let config = |hash: &str| {
        format!(
            "{TLS}basic_auth_users: {{ada: {hash}, bob: {OTHER}}}\nhttp_server_config:\n  headers:\n    X-Frame-Options: deny\n    Strict-Transport-Security: max-age=60\n"
        )
    };
    let files = Files::new(&config(S3CRET), &authority.server(1));
    let agent = files.agent();
    let client = Client::trusting(&authority, None);
    let mut kept = client.connect(&agent.address).unwrap();
    // This agent follows no policies and no objects, so it has neither of their pages.
    for path in ["/", "/metrics", "/healthz", "/readyz", "/policies", "/power", "/nothing"] {
        for headers in [String::new(), basic("ada", "wrong"), basic("eve", "s3cret"), basic("ada", "other")] {
            let answer = kept.get(path, &headers).unwrap();
            assert_eq!((answer.status, answer.body.as_str()), (401, "401 unauthorized\n"), "{path} {headers}");
            assert!(answer.head.contains("\r\nwww-authenticate: basic\r\n"), "{}", answer.head);
            assert!(answer.head.contains("\r\nx-frame-options: deny\r\n"), "{}", answer.head);
        }
        let answer = kept.get(path, &basic("ada", "s3cret")).unwrap();
        assert_eq!(
            answer.status,
            if ["/nothing", "/policies", "/power"].contains(&path) {
                404
            } else if path == "/readyz" {
                answer.status
            } else {
                200
            }
        );
        assert!(answer.head.contains("\r\nstrict-transport-security: max-age=60"), "{}", answer.head);
        assert!(!answer.head.contains("www-authenticate"), "{}", answer.head);
    }
    assert_eq!(kept.get("/healthz", &basic("bob", "other")).unwrap().status, 200);
    // A password that was changed counts from then on, also where it was proven and on a connection that is open.
    files.replaced(&agent, &config(N3W));
    assert_eq!(kept.get("/healthz", &basic("ada", "s3cret")).unwrap().status, 401);
    assert_eq!(kept.get("/healthz", &basic("ada", "n3w")).unwrap().status, 200);
}

#[test]
fn users_can_be_asked_for_without_tls_and_wrong_passwords_hold_up_nobody_who_is_known() {
    let files = Files::new(&format!("basic_auth_users:\n  ada: {OTHER}\n"), &Authority::new("one").server(1));
    let agent = files.agent();
    let get = |address: &str, password: &str| {
        let mut stream = TcpStream::connect(address).unwrap();
        write!(stream, "GET /healthz HTTP/1.1\r\nHost: x\r\n{}\r\n", basic("ada", password)).unwrap();
        Answer::read(&mut stream).unwrap().status
    };
    assert_eq!(get(&agent.address, "other"), 200);
    // One comparison takes 50 ms of CPU and more, and they are made one after another.
    let answered = Arc::new(AtomicUsize::new(0));
    let guesses: Vec<_> = (0..30)
        .map(|i| {
            let (address, answered) = (agent.address.clone(), Arc::clone(&answered));
            thread::spawn(move || {
                let status = get(&address, &format!("guess-{i}"));
                answered.fetch_add(1, Ordering::Relaxed);
                status
            })
        })
        .collect();
    wait_for("the first answer", || (answered.load(Ordering::Relaxed) > 0).then_some(()));
    assert_eq!(get(&agent.address, "other"), 200);
    assert!(answered.load(Ordering::Relaxed) < 30, "the one who is known was answered last");
    assert!(guesses.into_iter().all(|guess| guess.join().unwrap() == 401));
}

#[test]
fn what_protects_goes_only_with_a_restart() {
    let authority = Authority::new("one");
    let config = format!("{TLS}basic_auth_users: {{ada: {N3W}}}\n");
    let files = Files::new(&config, &authority.server(1));
    let mut agent = files.agent();
    let client = Client::trusting(&authority, None);
    for (text, problem) in [
        ("", "tls_server_config was removed; restart the agent to serve plain HTTP"),
        (TLS, "basic_auth_users was removed; restart the agent to let everyone read"),
        ("tls_server_confi: {}", "unknown key, did you mean tls_server_config? (line 1)"),
    ] {
        files.config(text);
        wait_for("the warning", || {
            assert_eq!(client.get(&agent.address, "/healthz", "").unwrap().status, 401);
            agent.logged(problem).into_iter().next()
        });
    }
    files.replaced(&agent, &config);
    assert_eq!(client.get(&agent.address, "/healthz", &basic("ada", "n3w")).unwrap().status, 200);
    agent.assert_well();
}

#[test]
fn a_file_that_cannot_be_used_ends_the_start_as_a_usage_error() {
    let authority = Authority::new("one");
    let files = Files::new(TLS, &authority.server(1));
    fs::write(files.folder().join("other.key"), authority.server(2).key).unwrap();
    for (config, expected) in [
        ("tls_server_config: {cert_file: tls.crt}", "web.yaml: tls_server_config: key_file is missing"),
        ("tls_server_config: {cert_file: no.crt, key_file: tls.key}", "no.crt: No such file or directory"),
        ("tls_server_config: {cert_file: tls.crt, key_file: other.key}", "other.key: "),
        ("tls_server_config: {cert_file: tls.key, key_file: tls.key}", "tls.key: no certificate in PEM"),
        ("tls_server_config: {cert_file: tls.crt, key_file: tls.crt}", "tls.crt: no private key in PEM"),
        ("basic_auth_user: {}", "unknown key, did you mean basic_auth_users? (line 1)"),
        ("basic_auth_users: {ada: s3cret}", "basic_auth_users: \"ada\": no usable bcrypt hash"),
        (&TLS.replace('}', ", client_ca_file: tls.crt}"), "client_ca_file without client_auth_type"),
        (
            &TLS.replace('}', ", client_auth_type: VerifyClientCertIfGiven}"),
            "VerifyClientCertIfGiven needs client_ca_file",
        ),
        (&TLS.replace('}', ", client_allowed_sans: [a]}"), "client_allowed_sans, but client_auth_type NoClientCert"),
        (
            &TLS.replace('}', ", client_auth_type: RequireAnyClientCert, client_allowed_sans: [a@b.example]}"),
            "e-mail addresses cannot be matched",
        ),
        (&TLS.replace('}', ", min_version: TLS11}"), "TLS 1.0 and 1.1 are not supported"),
        (&TLS.replace('}', ", min_version: TLS13, max_version: TLS12}"), "min_version is above max_version"),
        (
            &TLS.replace('}', ", max_version: TLS12, cipher_suites: [TLS_AES_128_GCM_SHA256]}"),
            "no entry of cipher_suites fits min_version to max_version",
        ),
    ] {
        files.config(config);
        let (code, text) = agent::run(&[&files.flag()]);
        assert_eq!(code, Some(2), "{config}: {text}");
        assert!(text.contains(expected), "{config}: {text}");
    }
    fs::remove_file(files.folder().join("web.yaml")).unwrap();
    let (code, text) = agent::run(&[&files.flag()]);
    assert!(code == Some(2) && text.contains("web.yaml: No such file or directory"), "{code:?}: {text}");
}

/// What doctor says of the configuration: status, detail, remedy.
fn doctor(program: &[&str], flags: &[&str], row: &str) -> [String; 3] {
    let mut doctor = Command::new(program[0]);
    doctor.args(&program[1..]).args(["doctor", "--format=json", "--ebpf=off", "--gpu=off"]).args(flags);
    let output = doctor.env("ENERGY_AGENT_WEB_LISTEN_ADDRESS", "127.0.0.1:0").output().unwrap();
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let row = report["checks"].as_array().unwrap().iter().find(|check| check["name"] == row).unwrap();
    ["status", "detail", "remedy"].map(|key| row[key].as_str().unwrap().to_owned())
}

#[test]
fn doctor_says_what_is_wrong_with_the_configuration_and_the_remedy() {
    let authority = Authority::new("one");
    let files = Files::new(TLS, &authority.server(1));
    let flag = files.flag();
    let assert = |status: &str, detail: &str, remedy: &str| {
        let found = doctor(&[PROGRAM], &[&flag], "web_config");
        assert!(found[0] == status && found[1].contains(detail) && found[2].contains(remedy), "{found:?}");
    };
    let none = doctor(&[PROGRAM], &[], "web_config");
    assert!(none[0] == "ok" && none[1].contains("plain HTTP") && none[2].is_empty(), "{none:?}");

    files.config(&format!("{TLS}basic_auth_users: {{ada: {S3CRET}}}"));
    // rcgen's own date.
    assert("ok", "web.yaml: HTTPS, 1 user with a password; the certificate is valid until 4096-01-01T00:00:00Z", "");
    files.config("tls_server_config:\n  certfile: x\n");
    assert("missing", "unknown key \"certfile\", did you mean cert_file? (line 2)", "docs/web-config.yaml");
    assert("missing", "the agent does not start with it", "");
    files.config("basic_auth_users: {ada: s3cret}");
    assert("missing", "\"ada\": no usable bcrypt hash", "htpasswd -nBC 10 ada");
    files.config("tls_server_config: {cert_file: tls.crt, key_file: no.key}");
    assert("missing", "no.key: No such file", "relative to its own folder");

    files.config(TLS);
    let seconds = |seconds| UNIX_EPOCH + Duration::from_secs(seconds);
    authority.server_between(UNIX_EPOCH, seconds(981_158_400)).write(files.folder());
    assert("missing", "the certificate expired at 2001-02-03T00:00:00Z, clients refuse it", "renew it");
    authority.server_between(seconds(64_060_588_800), seconds(64_060_588_900)).write(files.folder());
    assert("missing", "the certificate is valid from 4000-01-01T00:00:00Z", "clock");
    let (now, days) = (SystemTime::now(), |days: u64| Duration::from_secs(days * 24 * 3600));
    authority.server_between(UNIX_EPOCH, now + days(10)).write(files.folder());
    assert("fallback", "the certificate expires at ", "renew it");
    // One of seven days, as some authorities give no longer ones.
    authority.server_between(now - days(2), now + days(5)).write(files.folder());
    assert("ok", "the certificate is valid until ", "");
    authority.server_between(now - days(6), now + days(1)).write(files.folder());
    assert("fallback", "the certificate expires at ", "renew it");

    // As in a pod, where root is not above the modes of files.
    let key = files.folder().join("tls.key");
    authority.server(1).write(files.folder());
    std::os::unix::fs::chown(&key, Some(65534), None).unwrap();
    fs::set_permissions(&key, fs::Permissions::from_mode(0o400)).unwrap();
    let bounded = ["setpriv", "--bounding-set=-dac_override,-dac_read_search", "--", PROGRAM];
    let found = doctor(&bounded, &[&flag], "web_config");
    assert!(found[0] == "missing" && found[1].contains("tls.key: Permission denied"), "{found:?}");
    assert!(found[2].contains("chown root, chmod 0400"), "{found:?}");
}

#[test]
fn doctor_knows_an_agent_that_asks_for_tls_or_a_password() {
    let authority = Authority::new("one");
    let files = Files::new(TLS, &authority.server(1));
    for config in [TLS, &format!("basic_auth_users: {{ada: {S3CRET}}}")] {
        files.config(config);
        let mut agent = files.agent();
        let address = format!("--web.listen-address={}", agent.address);
        let found = doctor(&[PROGRAM], &[&address, &files.flag()], "listen_address");
        assert!(found[0] == "ok" && found[1].contains("with the protection of --web.config.file"), "{found:?}");
        // Without the file, it is somebody else's server.
        assert_eq!(doctor(&[PROGRAM], &[&address], "listen_address")[0], "missing");
        agent.assert_well();
    }
}

#[test]
fn top_attaches_with_an_authority_a_certificate_and_a_user() {
    let authority = Authority::new("one");
    let required = TLS.replace('}', ", client_auth_type: RequireAndVerifyClientCert, client_ca_file: ca.crt}");
    let files = Files::new(&format!("{required}basic_auth_users: {{ada: {N3W}}}\n"), &authority.server(1));
    let at = |name: &str| files.folder().join(name).display().to_string();
    let own = authority.client();
    for (name, text) in [
        ("ca.crt", authority.pem()),
        ("own.crt", own.certificate),
        ("own.key", own.key),
        ("password", "n3w\n".to_owned()),
    ] {
        fs::write(at(name), text).unwrap();
    }
    let agent = files.agent();
    let top = |scheme: &str, flags: &[String]| {
        let address = format!("{scheme}://localhost:{}", agent.address.rsplit(':').next().unwrap());
        let output = Command::new(PROGRAM).args(["top", "--iterations=1", &address]).args(flags).output().unwrap();
        (output.status.code(), String::from_utf8(output.stdout).unwrap() + &String::from_utf8(output.stderr).unwrap())
    };
    let ca = format!("--tls.ca-file={}", at("ca.crt"));
    let pair = [format!("--tls.cert-file={}", at("own.crt")), format!("--tls.key-file={}", at("own.key"))];
    let user = ["--basic-auth.username=ada".to_owned(), format!("--basic-auth.password-file={}", at("password"))];
    let all = [&[ca.clone()][..], &pair, &user].concat();
    let (code, text) = top("https", &all);
    assert!(code == Some(0) && text.contains("TOTAL W"), "{code:?}: {text}");
    for (scheme, flags, expected) in [
        ("http", &all[..], "for an agent with TLS use https://"),
        ("https", &all[1..], "--tls.ca-file names the agent's authority"),
        ("https", &[&[ca.clone()][..], &user].concat(), "--tls.cert-file a client certificate"),
        ("https", &all[..3], "answers 401; log in with --basic-auth.username"),
    ] {
        let (code, text) = top(scheme, flags);
        assert!(code == Some(1) && text.contains(expected), "{expected}: {code:?}: {text}");
    }
}

#[test]
fn prometheus_scrapes_over_tls_with_a_certificate_and_a_user() {
    let authority = Authority::new("one");
    let required = TLS.replace('}', ", client_auth_type: RequireAndVerifyClientCert, client_ca_file: ca.crt}");
    let files = Files::new(&format!("{required}basic_auth_users: {{ada: {S3CRET}}}\n"), &authority.server(1));
    let at = |name: &str| files.folder().join(name).display().to_string();
    let own = authority.client();
    for (name, text) in [("ca.crt", authority.pem()), ("own.crt", own.certificate), ("own.key", own.key)] {
        fs::write(at(name), text).unwrap();
    }
    let agent = files.agent();
    let job = |name: &str, tls: &str, password: &str| {
        let targets = format!("static_configs: [{{targets: ['{}']}}]", agent.address);
        let ca = at("ca.crt");
        format!(
            "{{job_name: {name}, scheme: https, tls_config: {{ca_file: {ca}{tls}}}, basic_auth: {{username: ada, password: {password}}}, {targets}}}"
        )
    };
    let pair = format!(", cert_file: {}, key_file: {}", at("own.crt"), at("own.key"));
    let jobs =
        [job("good", &pair, "s3cret"), job("no-certificate", "", "s3cret"), job("wrong-password", &pair, "guess")];
    let prometheus = Prometheus::scraping(&format!("[{}]", jobs.join(", ")));
    let up = |job: &str| prometheus.query(&format!("up{{job=\"{job}\"}}")).first().map(|(_, up)| *up);
    wait_for("a scrape", || up("good").filter(|up| *up > 0.0));
    for job in ["no-certificate", "wrong-password"] {
        assert!(wait_for("a refused scrape", || up(job)) < 0.5, "{job}");
    }
    let ticks = || prometheus.query("energy_agent_ticks_total{job=\"good\"}").first().map(|(_, ticks)| *ticks);
    let before = wait_for("ticks", ticks);
    wait_for("more ticks", || ticks().filter(|ticks| *ticks > before));
}
