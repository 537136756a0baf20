//! Connections that certificates protect.

mod common;

use std::path::Path;

use common::{Cluster, Recorded, asked_here, assert_same, rows_of};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};

const STATEMENT: &str = "SELECT t.name, b.function, count(*) AS n FROM blocks() b JOIN threads t ON b.tid = t.tid GROUP BY 1, 2";

/// Certificates in a folder: who signs, and what is signed.
fn certificates(folder: &Path) {
    let mut params = CertificateParams::new(Vec::new()).expect("parameters");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate().expect("a key");
    let ca = CertifiedIssuer::self_signed(params, key).expect("who signs");
    let key = KeyPair::generate().expect("a key");
    let names = vec!["127.0.0.1".to_owned(), "localhost".to_owned()];
    let params = CertificateParams::new(names).expect("parameters");
    let signed = params.signed_by(&key, &ca).expect("signed");
    std::fs::create_dir(folder).expect("a folder");
    let write =
        |name: &str, text: String| std::fs::write(folder.join(name), text).expect("written");
    write("ca.pem", ca.pem());
    write("cert.pem", signed.pem());
    write("key.pem", key.serialize_pem());
}

/// The arguments that name certificates.
fn words(folder: &Path) -> Vec<String> {
    let of =
        |option: &str, name: &str| [option.to_owned(), folder.join(name).display().to_string()];
    [
        of("--tls-cert", "cert.pem"),
        of("--tls-key", "key.pem"),
        of("--tls-ca", "ca.pem"),
    ]
    .concat()
}

#[test]
fn without_its_certificates_a_cluster_answers_nobody() {
    let recorded = Recorded::new();
    let folders = ["ours", "others"].map(|name| recorded.folder.path().join(name));
    folders.iter().for_each(|folder| certificates(folder));
    let [ours, others] = folders.map(|folder| words(&folder));
    let ours: Vec<&str> = ours.iter().map(String::as_str).collect();
    let others: Vec<&str> = others.iter().map(String::as_str).collect();
    let cluster = Cluster::start(2, &ours, &[]);
    let ask = |words: &[&str]| {
        let mut client = cluster.client(words, &[&recorded.whole], STATEMENT);
        client.output().expect("it runs")
    };
    let told = rows_of(&ask(&ours), STATEMENT);
    assert_same(&told, &asked_here(&[&recorded.whole], STATEMENT));
    for refused in [&[][..], &others] {
        let output = ask(refused);
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        assert!(output.stdout.is_empty() && !output.stderr.is_empty());
    }
}
