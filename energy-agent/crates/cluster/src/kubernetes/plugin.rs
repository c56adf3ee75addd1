//! Credentials that a program of the kubeconfig hands out: run with a time limit, and never quoted.
//! <https://kubernetes.io/docs/reference/access-authn-authz/authentication/#client-go-credential-plugins>

use std::io::Read as _;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use energy_model::advice::Advice;
use k8s_openapi::jiff::Timestamp;
use kube::config::{AuthInfo, ExecConfig};
use serde::Deserialize;
use serde_json::json;

/// Longest run. Some of them ask a cloud's servers.
const LIMIT: Duration = Duration::from_secs(30);
/// Between two looks whether it has ended.
const POLL: Duration = Duration::from_millis(20);
/// More than any credentials have.
const MAX_BYTES: u64 = 1 << 20;

#[derive(Deserialize)]
struct Credential {
    status: Option<CredentialStatus>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct CredentialStatus {
    expiration_timestamp: Option<String>,
    token: Option<String>,
    client_certificate_data: Option<String>,
    client_key_data: Option<String>,
}

/// Puts what the program hands out in its place; when that expires, if it says so. Waits for the program.
///
/// # Errors
/// When it cannot be run, fails, takes too long, or hands out nothing. The text has its name and status, and nothing of
/// its arguments, environment and output, which may hold secrets.
pub fn run(account: &mut AuthInfo) -> Result<Option<Timestamp>, Advice> {
    let Some(exec) = account.exec.take() else { return Ok(None) };
    run_within(account, &exec, LIMIT)
}

fn run_within(account: &mut AuthInfo, exec: &ExecConfig, limit: Duration) -> Result<Option<Timestamp>, Advice> {
    let name = exec.command.as_deref().ok_or("exec names no command")?;
    let problem = |advice: Advice| advice.of(format_args!("credential plugin {name}"));
    let output = output(exec, name, limit).map_err(problem)?;
    let none = || problem(Advice::new("its output is not an ExecCredential with a status", "run it by hand to see it"));
    let status = serde_json::from_slice::<Credential>(&output).ok().and_then(|credential| credential.status);
    let CredentialStatus { expiration_timestamp, token, client_certificate_data, client_key_data } =
        status.ok_or_else(none)?;
    if token.is_none() && client_key_data.is_none() {
        return Err(problem("returns neither a token nor a certificate".into()));
    }
    if let Some(token) = token {
        account.token = Some(token.into());
    }
    if let (Some(certificate), Some(key)) = (client_certificate_data, client_key_data) {
        // kube has these in base64, as the kubeconfig does.
        (account.client_certificate_data, account.client_key_data) =
            (Some(base64(&certificate)), Some(base64(&key).into()));
    }
    let expires = expiration_timestamp.map(|text| text.parse()).transpose();
    expires.map_err(|_| problem("its expirationTimestamp is not a time".into()))
}

fn output(exec: &ExecConfig, name: &str, limit: Duration) -> Result<Vec<u8>, Advice> {
    let mut spec = json!({"interactive": false});
    if exec.provide_cluster_info {
        spec["cluster"] = serde_json::to_value(&exec.cluster).map_err(|error| error.to_string())?;
    }
    let info = json!({"kind": "ExecCredential", "apiVersion": exec.api_version, "spec": spec});
    let mut command = Command::new(name);
    command.args(exec.args.iter().flatten()).env("KUBERNETES_EXEC_INFO", info.to_string());
    for variable in exec.env.iter().flatten() {
        if let (Some(name), Some(value)) = (variable.get("name"), variable.get("value")) {
            command.env(name, value);
        }
    }
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().map_err(|error| {
        let hint = exec.install_hint.as_deref().map(|hint| format!("; {}", hint.trim())).unwrap_or_default();
        Advice::new(error.to_string(), format!("install it where the agent runs, or name another kubeconfig{hint}"))
    })?;
    // What it has started may hold the pipe open after its end.
    let (read, stdout) = (std::sync::mpsc::channel(), child.stdout.take());
    let sender = read.0;
    let reader = thread::Builder::new().name("plugin".to_owned()).spawn(move || {
        let mut output = Vec::new();
        let whole = stdout.map(|stdout| stdout.take(MAX_BYTES).read_to_end(&mut output));
        let _ = sender.send(whole.and_then(Result::ok).map(|_| output));
    });
    let deadline = Instant::now() + limit;
    let ended = reader.map_err(|error| error.to_string().into()).and_then(|_| end(&mut child, deadline, limit));
    if ended.is_err() {
        let _ = child.kill();
        let _ = child.wait();
    }
    ended?;
    let output = read.1.recv_timeout(deadline.saturating_duration_since(Instant::now()).max(POLL));
    output.ok().flatten().ok_or_else(|| "its output does not end".into())
}

fn end(child: &mut Child, deadline: Instant, limit: Duration) -> Result<(), Advice> {
    let remedy = "run it by hand to see why";
    loop {
        match child.try_wait() {
            Ok(Some(status)) if status.success() => return Ok(()),
            Ok(Some(status)) => return Err(Advice::new(format!("failed with {status}"), remedy)),
            Ok(None) if Instant::now() < deadline => thread::sleep(POLL),
            Ok(None) => return Err(Advice::new(format!("has not ended after {} s", limit.as_secs()), remedy)),
            Err(error) => return Err(error.to_string().into()),
        }
    }
}

/// <https://www.rfc-editor.org/rfc/rfc4648#section-4>
fn base64(text: &str) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut encoded = String::new();
    for chunk in text.as_bytes().chunks(3) {
        let byte = |index: usize| u32::from(chunk.get(index).copied().unwrap_or(0));
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for digit in 0..4 {
            let index = usize::try_from(bits >> (18 - 6 * digit) & 63).unwrap_or(0);
            encoded.push(if digit > chunk.len() { '=' } else { char::from(ALPHABET[index]) });
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use kube::config::ExecInteractiveMode;

    use super::*;

    /// What a shell script makes of an account.
    fn run_script(script: &str, limit: Duration) -> (AuthInfo, Result<Option<Timestamp>, Advice>) {
        let exec: ExecConfig = serde_json::from_value(json!({
            "apiVersion": "client.authentication.k8s.io/v1", "command": "sh", "args": ["-c", script, "--secret=S3CRET"],
            "env": [{"name": "PASSWORD", "value": "S3CRET"}], "interactiveMode": "IfAvailable",
        }))
        .unwrap();
        assert_eq!(exec.interactive_mode, Some(ExecInteractiveMode::IfAvailable));
        let mut account = AuthInfo::default();
        let outcome = run_within(&mut account, &exec, limit);
        (account, outcome)
    }

    #[test]
    fn what_a_plugin_hands_out_is_taken_with_its_end() {
        let script = r#"
            case $KUBERNETES_EXEC_INFO in *client.authentication.k8s.io/v1*) ;; *) exit 1 ;; esac
            echo '{"status": {"token": "'$PASSWORD'", "expirationTimestamp": "2030-01-01T00:00:00Z"}}'"#;
        let (account, expires) = run_script(script, LIMIT);
        assert_eq!(expires.unwrap().unwrap().as_second(), 1_893_456_000);
        let account = serde_json::to_value(account).unwrap();
        assert_eq!(account["token"], "S3CRET");
        let script = r#"echo '{"status": {"clientCertificateData": "light work.", "clientKeyData": "light work"}}'"#;
        let (account, expires) = run_script(script, LIMIT);
        assert_eq!(expires, Ok(None));
        // The examples of RFC 4648's ancestor, <https://en.wikipedia.org/wiki/Base64#Examples>.
        assert_eq!(account.client_certificate_data.as_deref(), Some("bGlnaHQgd29yay4="));
        assert_eq!(serde_json::to_value(account).unwrap()["client-key-data"], "bGlnaHQgd29yaw==");
    }

    #[test]
    fn a_plugin_that_fails_or_hangs_is_told_by_name_and_status_alone() {
        for (script, told) in [
            ("echo S3CRET; echo S3CRET >&2; exit 3", "failed with exit status: 3"),
            ("echo S3CRET", "not an ExecCredential"),
            ("echo '{\"status\": {\"secret\": \"S3CRET\"}}'", "neither a token nor a certificate"),
            ("echo S3CRET; exec sleep 60", "has not ended after 1 s"),
            ("sleep 60 & exit 0", "its output does not end"),
        ] {
            let began = Instant::now();
            let problem = run_script(script, Duration::from_secs(1)).1.unwrap_err().to_string();
            assert!(problem.starts_with("credential plugin sh: ") && problem.contains(told), "{problem}");
            assert!(!problem.contains("S3CRET") && !problem.contains("PASSWORD"), "{problem}");
            // Long before either sleep is over.
            assert!(began.elapsed() < Duration::from_secs(60), "{:?}", began.elapsed());
        }
        let exec: ExecConfig =
            serde_json::from_value(json!({"command": "/nonexistent", "installHint": "brew it"})).unwrap();
        let problem = run_within(&mut AuthInfo::default(), &exec, LIMIT).unwrap_err().to_string();
        assert!(problem.contains("/nonexistent: No such file") && problem.contains("brew it"), "{problem}");
    }
}
