//! The life of a pod as the API server and the kernel tell it, one case after another.

use crate::kubernetes::node::Node;

#[test]
fn a_pod_has_the_uid_that_the_server_chose() {
    let node = Node::new();
    let pod = node.pod("shop", "cart", &["main"]);
    assert_eq!(pod.uid().len(), "12345678-1234-1234-1234-123456789012".len());
    assert_eq!((pod.namespace(), pod.name()), ("shop", "cart"));
    node.cluster.delete(&pod.object);
}
