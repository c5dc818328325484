use super::*;

#[test]
fn a_file_is_replaced_or_stays() {
    let directory = std::env::temp_dir().join(format!("tcuda-file-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let path = directory.join("snapshot");
    let name = path.to_str().unwrap();
    let long = vec![7; 3 * CHUNK + 5];
    replace(name, |put| put(&long)).unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), long);
    let refused = replace(name, |put| {
        put(b"half")?;
        Err(Error::Invalid("for the test"))
    });
    assert!(refused.is_err());
    assert_eq!(std::fs::read(&path).unwrap(), long);
    replace(name, |put| put(b"new")).unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), b"new");
    assert_eq!(std::fs::read_dir(&directory).unwrap().count(), 1, "nothing else is left");
    let nowhere = replace("/nonexistent/tcuda", |put| put(b"x"));
    assert!(matches!(nowhere, Err(Error::File { code: libc::ENOENT, .. })));
    std::fs::remove_dir_all(&directory).unwrap();
}
