//! Kubeconfigs, and the files that they name, into what a client needs. kube's own reader waits for pipes, and its errors
//! repeat lines of the file, which holds tokens; here they are read as all configuration is, and an error is a kind and a
//! place.

use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use energy_files::config_file;
use energy_model::advice::Advice;
use kube::Config;
use kube::config::{AuthInfo, Cluster, KubeConfigOptions, Kubeconfig, KubeconfigError};

/// Certificates of a hundred clusters fit in.
const MAX_BYTES: usize = 4 << 20;

/// Names of contexts that an error lists at most.
const LISTED: usize = 10;

/// The current context of the files, merged as kubectl does.
///
/// # Errors
/// The file and what is wrong with it.
pub async fn config(read: Kubeconfig, first: &Path) -> Result<Config, Advice> {
    // It names no file any more that has to be read, and waits for nothing.
    let config = Config::from_custom_kubeconfig(read, &KubeConfigOptions::default()).await;
    config.map_err(|error| problem(first, &error))
}

/// Reads the files, and those that their current context names. A `context` takes the place of the current one.
///
/// # Errors
/// As [`config`].
pub fn read(files: &[PathBuf], context: Option<String>) -> Result<Kubeconfig, Advice> {
    let mut merged = Kubeconfig::default();
    for file in files {
        let text = config_file::text(file, MAX_BYTES).map_err(|fault| named(file, &fault.to_string()))?;
        // A byte order mark, as editors on Windows write it.
        let text = text.strip_prefix('\u{feff}').unwrap_or(&text);
        let mut next = Kubeconfig::from_yaml(text).map_err(|error| problem(file, &error))?;
        make_absolute(&mut next, file.parent().unwrap_or(Path::new("")));
        merged = merged.merge(next).map_err(|error| problem(file, &error))?;
    }
    if let Some(context) = context {
        if !merged.contexts.iter().any(|known| known.name == context) {
            let names: Vec<&str> = merged.contexts.iter().map(|known| known.name.as_str()).take(LISTED).collect();
            let known =
                if names.is_empty() { "it has none".to_owned() } else { format!("it has {}", names.join(", ")) };
            let file = files.first().map_or(Path::new(""), PathBuf::as_path);
            return Err(named(file, &format!("no context {context:?}; {known}")));
        }
        merged.current_context = Some(context);
    }
    take_in(&mut merged)?;
    Ok(merged)
}

/// Paths are relative to the file that they stand in.
fn make_absolute(kubeconfig: &mut Kubeconfig, folder: &Path) {
    let absolute = |path: &mut Option<String>| {
        if let Some(path) = path {
            *path = folder.join(&*path).to_string_lossy().into_owned();
        }
    };
    for cluster in kubeconfig.clusters.iter_mut().filter_map(|named| named.cluster.as_mut()) {
        absolute(&mut cluster.certificate_authority);
    }
    for user in kubeconfig.auth_infos.iter_mut().filter_map(|named| named.auth_info.as_mut()) {
        absolute(&mut user.client_certificate);
        absolute(&mut user.client_key);
        absolute(&mut user.token_file);
        // A plugin without a slash is looked for in PATH.
        if let Some(exec) = user.exec.as_mut().filter(|exec| exec.command.as_ref().is_some_and(|it| it.contains('/'))) {
            absolute(&mut exec.command);
        }
    }
}

/// Puts the files that the current context names in their place: certificates and a key, which kube has in base64.
fn take_in(kubeconfig: &mut Kubeconfig) -> Result<(), Advice> {
    let current = kubeconfig.current_context.clone();
    let context = kubeconfig.contexts.iter().find(|context| Some(&context.name) == current.as_ref());
    let Some(context) = context.and_then(|context| context.context.clone()) else { return Ok(()) };
    let mut clusters = kubeconfig.clusters.iter_mut().filter(|cluster| cluster.name == context.cluster);
    if let Some(Cluster { certificate_authority, certificate_authority_data, .. }) =
        clusters.next().and_then(|named| named.cluster.as_mut())
        && certificate_authority_data.is_none()
    {
        *certificate_authority_data = encoded("certificate-authority", certificate_authority.take())?;
    }
    let mut users = kubeconfig.auth_infos.iter_mut().filter(|user| Some(&user.name) == context.user.as_ref());
    if let Some(AuthInfo { client_certificate, client_certificate_data, client_key, client_key_data, .. }) =
        users.next().and_then(|named| named.auth_info.as_mut())
    {
        if client_certificate_data.is_none() {
            *client_certificate_data = encoded("client-certificate", client_certificate.take())?;
        }
        if client_key_data.is_none() {
            *client_key_data = encoded("client-key", client_key.take())?.map(Into::into);
        }
    }
    Ok(())
}

fn encoded(key: &str, path: Option<String>) -> Result<Option<String>, Advice> {
    let Some(path) = path else { return Ok(None) };
    let bytes = config_file::bytes(Path::new(&path), config_file::MAX_BYTES);
    let remedy = "correct the kubeconfig that names it";
    let bytes = bytes.map_err(|fault| Advice::new(format!("{key} {path}: {fault}"), remedy))?;
    Ok(Some(STANDARD.encode(bytes)))
}

fn problem(file: &Path, error: &KubeconfigError) -> Advice {
    let line = match error {
        KubeconfigError::Parse(error) => error.location().map(|at| format!(" (line {})", at.line())),
        _ => None,
    };
    let kind = match error {
        KubeconfigError::Parse(_) => "not a kubeconfig: invalid YAML, or a value of the wrong type",
        KubeconfigError::CurrentContextNotSet => "no current-context",
        KubeconfigError::KindMismatch | KubeconfigError::ApiVersionMismatch => {
            "its kind or apiVersion is not that of the other files"
        }
        KubeconfigError::LoadContext(_) => "its current-context is not one of its contexts",
        KubeconfigError::LoadClusterOfContext(_) => "the cluster of its current-context is not one of its clusters",
        KubeconfigError::MissingClusterUrl => "the cluster of its current-context has no server",
        KubeconfigError::ParseClusterUrl(_) => "server is not a URL",
        KubeconfigError::ParseProxyUrl(_) => "proxy-url is not a URL",
        KubeconfigError::LoadCertificateAuthority(_) => "certificate-authority-data is not base64",
        KubeconfigError::LoadClientCertificate(_) => "client-certificate is missing, or its data is not base64",
        KubeconfigError::LoadClientKey(_) => "client-key is missing, or its data is not base64",
        KubeconfigError::ParseCertificates(_) => "certificate-authority is not a certificate in PEM",
        _ => "it cannot be used",
    };
    named(file, &(kind.to_owned() + &line.unwrap_or_default()))
}

fn named(file: &Path, problem: &str) -> Advice {
    Advice::new(problem, "correct it, or name another with --kubeconfig")
        .of(format_args!("kubeconfig {}", file.display()))
}
