//! energy-agent: which pod used how many joules. The kernel says who ran, the hardware says what was drawn, attribution
//! divides the second by the first, and a scrape reads the result.

pub mod attribution;
pub mod capping;
pub mod config;
mod errand;
pub mod export;
pub mod ledger;
mod memory;
pub mod meter;
mod mounted;
mod news;
pub mod node;
pub mod process_ledger;
pub mod report;
mod settle;
pub mod snapshot;
pub mod static_build;
pub mod units;
pub mod workload;

use std::collections::BTreeSet;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{Notify, oneshot, watch};
use tracing::{error, info, warn};

use capping::events::{self, Outbox, Sending};
use capping::source as policies;
use config::{Capping, Config, IdlePolicy, Level};
use export::http::{Web, serve};
use export::own::SelfMetrics;
use export::page::Published;
use export::protection::ProtectionSource;
use export::selection_source::{self, InForce, SelectionSource};
use node::{Node, node_name};
use workload::configmaps::{self, Which};
use workload::kubernetes::Credentials;
use workload::pods::{self, Source, Told};

/// Runs the exporter until SIGTERM or SIGINT.
///
/// # Errors
/// When the address is taken, or a demanded meter is refused.
pub fn run(config: &Config) -> Result<()> {
    memory::bound_what_is_kept();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("starting the runtime")?;
    let outcome = runtime.block_on(run_until_signal(config));
    // A look at a file system that hangs, or at a name server that is silent, must not keep the program from ending.
    runtime.shutdown_background();
    outcome
}

async fn run_until_signal(config: &Config) -> Result<()> {
    // Before anything else is opened: two agents on one port are the commonest mistake.
    let listener = listen(config.listen_address).await?;
    let mut terminate = signal(SignalKind::terminate()).context("waiting for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("waiting for SIGINT")?;
    let base = selection_source::at_start(config).map_err(anyhow::Error::msg)?;
    let own = Arc::new(SelfMetrics::new());
    let protection =
        ProtectionSource::open(config.web_config.as_deref(), Arc::clone(&own)).map_err(anyhow::Error::msg)?;
    if config.capping == Capping::Off && config.has_policies() {
        warn!("policies are named and not followed: capping is off (--capping=on)");
    }
    let policies = (config.capping == Capping::On).then(|| policies::start(config));
    let (outbox, sending) = events(config, &own).unzip();
    let node = Node::open(config, policies, outbox)?;
    let blank = node.blank();
    let processes = blank.meters.iter().any(|state| state.meter == "ebpf" && state.up);
    let selection = SelectionSource::open(config, base, processes, Arc::clone(&own));
    let export = selection.in_force();
    let first = Published::new(blank, Arc::clone(&export.borrow()));
    let (publish, snapshots) = watch::channel(Arc::new(first));
    let (end, ended) = mpsc::channel::<()>();
    let (ticking, mut stopped) = oneshot::channel::<()>();
    let pods = PodsEnd::start(config);
    let ticker =
        Ticker { node, pods, interval: config.interval, export, publish, own: Arc::clone(&own), _ticking: ticking };
    let ticker =
        thread::Builder::new().name("tick".to_owned()).spawn(move || ticker.run(&ended)).context("tick thread")?;

    let web = Web {
        telemetry_path: config.telemetry_path.clone(),
        interval: config.interval,
        snapshots,
        own,
        protection: protection.in_force(),
        scrapers: Arc::default(),
    };
    let address = listener.local_addr().context("listening address")?;
    info!(%address, path = web.telemetry_path, protection = web.protection.borrow().text(), "listening");
    let signalled = async move {
        tokio::select! {
            _ = terminate.recv() => info!("SIGTERM, ending"),
            _ = interrupt.recv() => info!("SIGINT, ending"),
            // Rather end, and be started again, than go on serving what no longer changes.
            _ = &mut stopped => error!("the tick thread is gone, ending"),
        }
    };
    let told = config
        .export_configmap
        .clone()
        .map(|object| configmaps::start(Credentials::find(config.kubeconfig.as_deref()), &Which::Named(object)));
    let follow = tokio::spawn(selection.follow(told));
    let guard = tokio::spawn(protection.follow());
    let served = serve(listener, web, signalled).await;
    follow.abort();
    guard.abort();
    drop(end);
    if ticker.join().is_err() {
        anyhow::bail!("the tick thread panicked");
    }
    // Everything has been given back; now that may be told.
    if let Some(sending) = sending {
        sending.finish().await;
    }
    served
}

/// Where changes of capping are told: the cluster that pods are known from.
fn events(config: &Config, own: &Arc<SelfMetrics>) -> Option<(Outbox, Sending)> {
    let is_wanted = config.capping == Capping::On && !matches!(Source::choose(config), Source::None { .. });
    let credentials = is_wanted.then(|| Credentials::find(config.kubeconfig.as_deref())).flatten()?;
    Some(events::start(credentials, node_name(config), Arc::clone(own)))
}

/// Takes the address; where the machine has no IPv6, "every address" means every IPv4 address.
async fn listen(address: SocketAddr) -> Result<TcpListener> {
    let bound = match TcpListener::bind(address).await {
        Err(error) if address.ip().is_unspecified() && error.raw_os_error() == Some(libc::EAFNOSUPPORT) => {
            TcpListener::bind((Ipv4Addr::UNSPECIFIED, address.port())).await
        }
        bound => bound,
    };
    bound.map_err(|error| {
        let remedy = match error.kind() {
            io::ErrorKind::AddrInUse => {
                "; another program listens there (an agent that runs already?), choose another with --web.listen-address"
            }
            io::ErrorKind::PermissionDenied => "; ports below 1024 need root or CAP_NET_BIND_SERVICE",
            _ => "; choose another with --web.listen-address",
        };
        anyhow::anyhow!("listening on {address}: {error}{remedy}")
    })
}

/// The tick thread's end of what is known of the pods.
struct PodsEnd {
    told: watch::Receiver<Told>,
    /// Asks a kubelet before its time.
    unknown: Option<Arc<Notify>>,
    /// Pods without a name at the last tick; each brings forward one question at most.
    unnamed: BTreeSet<Arc<str>>,
}

impl PodsEnd {
    fn start(config: &Config) -> Self {
        let source = Source::choose(config);
        if config.idle_policy == IdlePolicy::Requests && matches!(source, Source::None { .. }) {
            warn!(
                "no pod's CPU request is known, so all idle energy stays unassigned: --attribution.idle-policy=requests \
                 needs a --pods.source other than none that can be asked"
            );
        }
        let (told, unknown) = pods::start(source, &node_name(config));
        Self { told, unknown, unnamed: BTreeSet::new() }
    }

    fn told(&self) -> Told {
        self.told.borrow().clone()
    }

    fn ask_for_unnamed(&mut self, node: &Node) {
        let Some(unknown) = &self.unknown else { return };
        let unnamed: BTreeSet<_> = node.unnamed_pods().cloned().collect();
        if !unnamed.is_subset(&self.unnamed) {
            unknown.notify_one();
        }
        self.unnamed = unnamed;
    }
}

/// The tick loop: at a fixed rate, whatever the scrapes do.
struct Ticker {
    node: Node,
    pods: PodsEnd,
    interval: Duration,
    export: watch::Receiver<Arc<InForce>>,
    publish: watch::Sender<Arc<Published>>,
    own: Arc<SelfMetrics>,
    /// Dropped with the thread, however that ends.
    _ticking: oneshot::Sender<()>,
}

impl Ticker {
    /// Ticks until `ended` says so or its sender is gone.
    fn run(mut self, ended: &mpsc::Receiver<()>) {
        self.node.begin();
        let goes_on = |until: Instant| {
            let ended = ended.recv_timeout(until.saturating_duration_since(Instant::now()));
            matches!(ended, Err(mpsc::RecvTimeoutError::Timeout))
        };
        let mut due = Instant::now() + self.interval;
        let mut given_back = Instant::now();
        while goes_on(due) {
            let began = Instant::now();
            let late = began.saturating_duration_since(due) > self.interval / 2;
            let wanted = self.export.borrow().selection.levels().contains(&Level::Process);
            self.node.account_processes(wanted);
            let snapshot = self.node.tick(late, &self.pods.told());
            self.pods.ask_for_unnamed(&self.node);
            let export = Arc::clone(&self.export.borrow());
            let published = Arc::new(Published::new(snapshot, export));
            // Before the page of this tick may be encoded.
            self.own.tick_took(began.elapsed());
            self.publish.send_replace(published);
            due += self.interval;
            // Ticks that were missed (the machine slept) are not made up for; their time is in this one.
            if due < Instant::now() {
                due = Instant::now() + self.interval;
            }
            if given_back.elapsed() >= memory::GIVE_BACK_EVERY {
                // Between two ticks, when nobody waits for the heap.
                if !goes_on(due - self.interval / 2) {
                    break;
                }
                memory::give_back();
                given_back = Instant::now();
            }
        }
        self.node.close(&self.pods.told());
    }
}
