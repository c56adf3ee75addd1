use std::fs::File;
use std::os::unix::fs::symlink;

use tempfile::TempDir;

use super::*;

/// Names below `folder` and texts.
fn texts(folder: &Path, documents: &Documents) -> Vec<(String, String)> {
    let text = |(place, content): (&DocumentPlace, &Result<Arc<str>, String>)| {
        let DocumentPlace::File(path) = place else { panic!("{place}") };
        let name = Path::new(path).strip_prefix(folder).unwrap().display().to_string();
        (name, content.clone().unwrap_or_else(|problem| format!("error: {problem}").into()).to_string())
    };
    documents.iter().map(text).collect()
}

fn owned(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
    pairs.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect()
}

/// What the kubelet does with a new version, and what it leaves.
fn swap(folder: &Path, version: &str, files: &[(&str, &str)]) {
    let old = fs::read_link(folder.join("..data")).ok();
    fs::create_dir(folder.join(version)).unwrap();
    for (name, text) in files {
        fs::write(folder.join(version).join(name), text).unwrap();
    }
    symlink(version, folder.join("..data_tmp")).unwrap();
    fs::rename(folder.join("..data_tmp"), folder.join("..data")).unwrap();
    for (name, _) in files {
        let _ = symlink(format!("..data/{name}"), folder.join(name));
    }
    if let Some(old) = old {
        fs::remove_dir_all(folder.join(old)).unwrap();
    }
}

#[test]
fn each_swap_of_a_mounted_configmap_is_one_whole_version_under_the_same_names() {
    // FC-093: also with content equal to the last and a new folder, and with a time of the file that goes back.
    let folder = TempDir::new().unwrap();
    let path = folder.path();
    for (version, text) in [("..111", "v1"), ("..222", "v2"), ("..333", "v3"), ("..444", "v3")] {
        swap(path, version, &[("policies.yaml", text), ("readme.txt", "none")]);
        let file = File::open(path.join("policies.yaml")).unwrap();
        file.set_modified(std::time::UNIX_EPOCH).unwrap();
        assert_eq!(texts(path, &read(path).unwrap()), owned(&[("policies.yaml", text)]));
        assert_eq!(texts(path, &read(&path.join("policies.yaml")).unwrap()), owned(&[("policies.yaml", text)]));
    }
    // In the middle of a swap nothing is deleted.
    fs::remove_dir_all(path.join("..444")).unwrap();
    assert!(read(path).unwrap_err().message.contains("..data: No such file"));
}

#[test]
fn a_folder_has_its_documents_by_ending_and_what_is_not_there_has_none() {
    let folder = TempDir::new().unwrap();
    let path = folder.path();
    for name in ["b.yaml", "a.yml", "c.json", ".hidden.yaml", "..data.yaml", "d.yaml~", "e.txt"] {
        fs::write(path.join(name), name).unwrap();
    }
    fs::create_dir(path.join("f.yaml")).unwrap();
    symlink("nowhere", path.join("g.yaml")).unwrap();
    let all = owned(&[("a.yml", "a.yml"), ("b.yaml", "b.yaml"), ("c.json", "c.json")]);
    assert_eq!(texts(path, &read(path).unwrap()), all);
    // A file that is named counts, whatever its ending.
    assert_eq!(texts(path, &read(&path.join("e.txt")).unwrap()), owned(&[("e.txt", "e.txt")]));
    assert_eq!(read(&path.join("missing")).unwrap(), Documents::new());
    assert_eq!(read(&path.join("missing/file")).unwrap(), Documents::new());
    let failure = read(&path.join("e.txt/file")).unwrap_err();
    assert_eq!(failure.reason, Reason::Unreadable);
    assert!(failure.message.contains("e.txt/file: Not a directory"), "{failure:?}");
    assert_eq!(read(Path::new("/dev/null")).unwrap_err().reason, Reason::Unreadable);
}

#[test]
fn what_is_too_large_is_refused_by_a_stated_limit() {
    // FC-095.
    let folder = TempDir::new().unwrap();
    let path = folder.path();
    let mebibyte = "#".repeat(1_048_576);
    fs::write(path.join("a.yaml"), format!("{mebibyte}#")).unwrap();
    fs::write(path.join("b.yaml"), [b'a', 0xff]).unwrap();
    fs::write(path.join("c.yaml"), &mebibyte).unwrap();
    let documents = read(path).unwrap();
    let words: Vec<_> =
        texts(path, &documents).into_iter().map(|(_, text)| text[..text.len().min(46)].to_owned()).collect();
    assert_eq!(
        words,
        ["error: larger than 1 MiB; divide it", "error: not text: byte 1 is not UTF-8; save it ", &"#".repeat(46)]
    );
    for file in 0..8 {
        fs::write(path.join(format!("d{file}.yaml")), &mebibyte).unwrap();
    }
    let failure = read(path).unwrap_err();
    assert_eq!(failure.reason, Reason::Limit);
    assert!(failure.message.contains("more than 8 MiB"), "{failure:?}");
    let folder = TempDir::new().unwrap();
    for file in 0..257 {
        fs::write(folder.path().join(format!("{file}.yaml")), "").unwrap();
    }
    assert!(read(folder.path()).unwrap_err().message.contains("257 documents, more than 256"));
}
