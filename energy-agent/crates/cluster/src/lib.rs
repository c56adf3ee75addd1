//! The Kubernetes cluster: what the agent asks it and reports to it. In come credentials and the names of objects; out go pods, ConfigMaps, devices of
//! containers, each through a channel that keeps the last good answer, and Events go to the API server.
//!
//! It knows neither the machine nor any page: what an object means for energy is decided in the model.
#![forbid(unsafe_code)]

pub mod agents;
pub mod api;
pub mod config;
pub mod configmaps;
pub mod events;
pub mod https;
pub mod job;
pub mod kinds;
pub mod kubernetes;
pub mod objects;
pub mod pod_resources;
pub mod pods;
pub mod prometheus;
pub mod proxies;
pub mod resource_slices;
pub mod resources;
