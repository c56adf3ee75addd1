//! energy-agent: which pod used how many joules. The kernel says who ran, the hardware says what was drawn, attribution
//! divides the second by the first, and a scrape reads the result.
#![forbid(unsafe_code)]

pub mod cli;
pub mod config;
pub mod controller;
mod identity;
mod liveness;
pub mod logging;
pub mod node;
mod notify;
pub mod panics;
pub mod policies;
pub mod selection_source;
mod signals;
mod ticker;

use std::net::{Ipv4Addr, SocketAddr};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::Arc;
use std::{io, thread};

use anyhow::{Context, Result, bail};
use energy_cluster::configmaps::{self, Which};
use energy_cluster::events::{self, Outbox, Sending};
use energy_cluster::kubernetes::Credentials;
use energy_cluster::pods::PodSource;
use energy_export::http::{Web, serve};
use energy_export::page::Published;
use energy_export::self_metrics::SelfMetrics;
use energy_export::web_config::WebConfigSource;
use energy_files::reload;
use energy_model::advice::Advice;
use energy_model::meter_state::MeterName;
use tokio::net::{TcpListener, TcpSocket};
use tokio::runtime::Handle;
use tokio::sync::{oneshot, watch};
use tracing::{error, info, warn};

use crate::config::{Capping, Config, Resources};
use crate::node::{Node, Told, node_name};
use crate::notify::Manager;
use crate::selection_source::SelectionSource;
use crate::signals::{Meaning, Signals};
use crate::ticker::{Closed, PodsEnd, TickThread, Ticker};

/// Of each connection; the kernel takes it twice.
const SEND_BUFFER_BYTES: u32 = 64 * 1024;
/// Connections that wait to be accepted.
const BACKLOG: u32 = 4096;

/// How the exporter ended, if by no error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ended {
    /// With everything restored.
    InOrder,
    /// The log says what is left, and why.
    WithLimits,
    /// The tick thread is gone or hangs; whatever it has written to the hardware is still in the journal.
    Unfinished(String),
}

/// Runs the exporter until a signal ends it.
///
/// # Errors
/// When the address is taken, a demanded meter is refused, or a thread has panicked; everything is restored by then.
pub fn run(config: &Config) -> Result<Ended> {
    energy_host::memory::bound_what_is_kept();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("starting the runtime")?;
    let outcome = catch_unwind(AssertUnwindSafe(|| runtime.block_on(run_until_signal(config))));
    // A look at a file system that hangs, or at a name server that is silent, must not keep the program from ending.
    runtime.shutdown_background();
    // The tick thread was ended by the way, if it could be.
    let ended = outcome.unwrap_or_else(|_| Ok(Ended::Unfinished("the main thread panicked".to_owned())))?;
    if ended == Ended::InOrder && panics::has_happened() {
        bail!("a thread has panicked, see the log");
    }
    Ok(ended)
}

async fn run_until_signal(config: &Config) -> Result<Ended> {
    // Before anything else is opened: two agents on one port are the commonest mistake.
    let listener = listen(config.listen_address).await?;
    let mut signals = Signals::listen()?;
    let manager = Manager::of_environment();
    let base = selection_source::at_start(config).map_err(anyhow::Error::msg)?;
    let own = Arc::new(SelfMetrics::new());
    let web_config =
        WebConfigSource::open(config.web_config.as_deref(), Arc::clone(&own)).map_err(anyhow::Error::msg)?;
    if config.capping == Capping::Off && config.has_policies() {
        warn!("policies are ignored because capping is off; add --capping=on");
    }
    let is_on = config.capping == Capping::On;
    let policies = is_on.then(|| policies::start(config, &own));
    let budgets = (is_on && config.capping_resources != Resources::Off)
        .then(|| policies::budgets::start(config, node_name(config)));
    let policies = policies.map(|policies| (policies, budgets));
    let (outbox, sending) = events(config, &own).unzip();
    let Some(node) = open(config, policies, outbox, &mut signals).await? else {
        return Ok(Ended::Unfinished("the agent ends before its meters are open".to_owned()));
    };
    let blank = node.blank();
    let processes = blank.meters.iter().any(|state| state.meter == MeterName::Ebpf && state.is_up());
    let selection = SelectionSource::open(config, base, processes, Arc::clone(&own));
    let export = selection.in_force();
    let first = Published::new(blank, Arc::clone(&export.borrow()));
    let (publish, snapshots) = watch::channel(Arc::new(first));
    let pods = PodsEnd::start(config);
    let ticker = Ticker { node, pods, interval: config.host.interval, export, publish, own: Arc::clone(&own) };
    let mut ticks = TickThread::start(ticker)?;

    let web = Web {
        telemetry_path: config.telemetry_path.clone(),
        interval: config.host.interval,
        power: config.capping_resources != Resources::Off,
        snapshots: snapshots.clone(),
        own,
        web_config: web_config.in_force(),
    };
    let address = listener.local_addr().context("listening address")?;
    info!(%address, path = web.telemetry_path, protection = web.web_config.borrow().text(), "listening");
    let ending = async {
        loop {
            tokio::select! {
                meaning = signals.next() => match meaning {
                    Meaning::End(name) => break info!("{name}, the agent ends"),
                    Meaning::Reload => {
                        info!("SIGHUP: reading web configuration, policies, selection and certificates again");
                        manager.reloading();
                        reload::reload();
                        manager.ready();
                    }
                },
                // Rather end, and be started again, than go on serving what no longer changes.
                () = ticks.stopped() => break error!("the tick thread has ended, the agent ends"),
                () = panics::news() => break error!("a thread has ended, the agent ends"),
            }
        }
    };
    let alive = liveness::tell(&manager, snapshots, config.host.interval);
    let told = config.export_configmap.clone().map(|object| {
        configmaps::start(Credentials::find(config.cluster.kubeconfig.as_deref()), &Which::Named(object))
    });
    let follow = tokio::spawn(selection.follow(told));
    let guard = tokio::spawn(web_config.follow());
    let ending = async {
        tokio::select! {
            () = ending => {}
            never = alive => match never {},
        }
        manager.stopping();
    };
    let served = serve(listener, web, ending).await;
    follow.abort();
    guard.abort();
    let closed = ticks.end();
    // Everything is restored; now that may be reported.
    if let Some(sending) = sending
        && closed != Closed::Hangs
    {
        sending.finish().await;
    }
    served?;
    Ok(match closed {
        Closed::Restored => Ended::InOrder,
        Closed::Left => Ended::WithLimits,
        Closed::Panicked => Ended::Unfinished("the tick thread panicked".to_owned()),
        Closed::Hangs => Ended::Unfinished("the tick thread hangs".to_owned()),
    })
}

/// Opens the meters, on a thread of its own, as a file of them may hang. `None`: a signal came first.
async fn open(
    config: &Config,
    policies: Option<Told>,
    outbox: Option<Outbox>,
    signals: &mut Signals,
) -> Result<Option<Node>> {
    let (send, opened) = oneshot::channel();
    let (config, runtime) = (config.clone(), Handle::current());
    let open = move || {
        // Where the kubelet is asked from.
        let _inside = runtime.enter();
        // Nobody waits for it any more once a signal has come.
        let _ = send.send(Node::open(&config, policies, outbox));
    };
    thread::Builder::new().name("open".to_owned()).spawn(open).context("thread to open the meters")?;
    let mut opened = pin!(opened);
    loop {
        tokio::select! {
            node = &mut opened => return node.context("opening the meters")?.map(Some),
            meaning = signals.next() => if let Meaning::End(name) = meaning {
                info!("{name}, the agent ends");
                return Ok(None);
            },
        }
    }
}

/// Where changes of capping are sent: the cluster that the pods come from.
fn events(config: &Config, own: &Arc<SelfMetrics>) -> Option<(Outbox, Sending)> {
    let is_wanted =
        config.capping == Capping::On && !matches!(PodSource::choose(&config.cluster), PodSource::None { .. });
    let credentials = is_wanted.then(|| Credentials::find(config.cluster.kubeconfig.as_deref())).flatten()?;
    own.count_events();
    let own = Arc::clone(own);
    Some(events::start(credentials, node_name(config), Arc::new(move |posted| own.event(posted))))
}

/// Takes the address; where the machine has no IPv6, "every address" means every IPv4 address.
async fn listen(address: SocketAddr) -> Result<TcpListener> {
    let bind = |address: SocketAddr| {
        let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
        socket.set_reuseaddr(true)?;
        // Connections inherit it. The kernel would keep megabytes for a client that does not read, charged to the agent.
        socket.set_send_buffer_size(SEND_BUFFER_BYTES)?;
        socket.bind(address)?;
        socket.listen(BACKLOG)
    };
    let bound = match bind(address) {
        Err(error) if address.ip().is_unspecified() && error.raw_os_error() == Some(libc::EAFNOSUPPORT) => {
            bind((Ipv4Addr::UNSPECIFIED, address.port()).into())
        }
        bound => bound,
    };
    bound.map_err(|error| {
        let remedy = match error.kind() {
            io::ErrorKind::AddrInUse => {
                "another program uses this address (maybe a running agent), choose another with --web.listen-address"
            }
            io::ErrorKind::PermissionDenied => "ports below 1024 need root or CAP_NET_BIND_SERVICE",
            _ => "choose another with --web.listen-address",
        };
        anyhow::Error::new(Advice::new(format!("listening on {address}: {error}"), remedy))
    })
}
