//! `cofi unit generations` and `cofi unit cpuid`.

mod common;

use common::{cofi, run_with};
use serde_json::Value;

fn objects(arguments: &[&str]) -> Vec<Value> {
    let ran = run_with(cofi().arg("unit").args(arguments).arg("--json"), b"");
    assert_eq!(ran.code(), 0, "{}", ran.stderr);
    let text = ran.text();
    let lines = text.lines();
    lines
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect()
}

#[test]
fn generations_are_listed_with_what_they_can_do() {
    let generations = objects(&["generations"]);
    let skylake = generations
        .iter()
        .find(|it| it["generation"] == "skylake")
        .expect("it is there");
    assert_eq!(
        (&skylake["family"], &skylake["model"]),
        (&6.into(), &0x5e.into())
    );
    assert_eq!(
        (&skylake["mtc"], &skylake["ptwrite"], &skylake["lip"]),
        (&true.into(), &false.into(), &false.into())
    );
    assert_eq!(
        (&skylake["address_ranges"], &skylake["crystal.numerator"]),
        (&2.into(), &184.into())
    );
    let text = run_with(cofi().args(["unit", "generations"]), b"").text();
    assert_eq!(text.lines().count(), generations.len());
    let line = text
        .lines()
        .find(|line| line.starts_with("skylake "))
        .expect("it is there");
    let words: Vec<_> = line.split_whitespace().collect();
    assert!(
        words.contains(&"6/5E") && words.contains(&"mtc") && !words.contains(&"ptwrite"),
        "{line}"
    );
    // Each is a preset of a scenario.
    for generation in &generations {
        let name = generation["generation"].as_str().expect("a name");
        let scenario = format!("[capabilities]\npreset = \"{name}\"\n[[op]]\nop = \"plain\"\n");
        let ran = run_with(cofi().args(["unit", "run", "-"]), scenario.as_bytes());
        assert_eq!(ran.code(), 0, "{}", ran.stderr);
    }
}

#[test]
fn cpuid_leaves_of_a_generation_are_printed() {
    let leaves = objects(&["cpuid", "skylake", "everything"]);
    assert_eq!(leaves.len(), 10);
    let leaf = |name: &str, leaf: &str, subleaf: u64| {
        let found = leaves
            .iter()
            .find(|it| it["generation"] == name && it["leaf"] == leaf && it["subleaf"] == subleaf);
        found.expect("it is there").clone()
    };
    // As InstLatx64's dump of a Core i5-6400T has them.
    let main = leaf("skylake", "0x14", 0);
    assert_eq!(
        (&main["eax"], &main["ebx"], &main["ecx"]),
        (&"0x1".into(), &"0xf".into(), &"0x7".into())
    );
    let sub = leaf("skylake", "0x14", 1);
    assert_eq!(
        (&sub["eax"], &sub["ebx"]),
        (&"0x2490002".into(), &"0x3f3fff".into())
    );
    assert_eq!(leaf("skylake", "0x7", 0)["ebx"], "0x2000000");
    assert_eq!(leaf("everything", "0x14", 0)["ebx"], "0x1ff");
    let text = run_with(cofi().args(["unit", "cpuid", "skylake"]), b"").text();
    for line in [
        "  00000014.1  eax 02490002  ebx 003f3fff  ecx 00000000  edx 00000000",
        "    eax[31:16] mtc_periods = 0x249",
        "    ebx[3]     mtc = 0x1",
        "  IA32_VMX_MISC[14]  vmx = 1",
    ] {
        assert!(text.lines().any(|it| it == line), "{text}");
    }
    let none = run_with(cofi().args(["unit", "cpuid", "frob"]), b"");
    assert_eq!((none.code(), none.text().as_str()), (2, ""));
    assert!(none.stderr.contains("\"frob\""), "{}", none.stderr);
}
