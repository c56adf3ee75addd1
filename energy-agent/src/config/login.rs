//! The flags by which a command logs in to what it asks over HTTP.

use std::path::PathBuf;

use clap::Args;

/// Credentials for a running agent with `--web.config.file`, or for a Prometheus server.
#[derive(Clone, Debug, Default, Args)]
pub struct Login {
    /// Authority (PEM) that must have signed the agent's certificate. Default: the authorities of this machine.
    #[arg(long = "tls.ca-file", value_name = "FILE")]
    pub ca_file: Option<PathBuf>,
    /// Client certificate (PEM) for an agent that requires one.
    #[arg(long = "tls.cert-file", requires = "key_file", value_name = "FILE")]
    pub cert_file: Option<PathBuf>,
    /// Private key (PEM) of that certificate.
    #[arg(long = "tls.key-file", requires = "cert_file", value_name = "FILE")]
    pub key_file: Option<PathBuf>,
    /// File with a bearer token, as Thanos, OpenShift and authenticating proxies ask for. It is read again for each question, so
    /// that a token may be renewed.
    #[arg(long = "bearer-token-file", conflicts_with = "username", value_name = "FILE")]
    pub token_file: Option<PathBuf>,
    /// User name, if the agent has basic_auth_users.
    #[arg(long = "basic-auth.username", requires = "password_file", value_name = "NAME")]
    pub username: Option<String>,
    /// File with the password; a line break at its end is ignored.
    #[arg(long = "basic-auth.password-file", requires = "username", value_name = "FILE")]
    pub password_file: Option<PathBuf>,
}
