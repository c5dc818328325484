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

#[test]
fn a_reader_that_takes_nothing_ends_the_wait() {
    let mut ends = [0; 2];
    // SAFETY: two new descriptors are written to `ends`.
    assert_eq!(unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_NONBLOCK) }, 0);
    let [reader, writer] = ends.map(|end| owned(end).unwrap());
    let more_than_fits = vec![0; 1 << 20];
    let put = || write(&writer, c"pipe", |put| put(&more_than_fits));
    assert!(matches!(put(), Err(Error::File { code: libc::ETIMEDOUT, .. })));
    drop(reader);
    let _quiet = BlockedSignals::begin();
    assert!(matches!(put(), Err(Error::File { code: libc::EPIPE, .. })), "and no signal");
}
