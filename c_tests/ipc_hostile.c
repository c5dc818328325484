/* Processes of this user's that speak to the library's socket, and are none of its own: nothing
 * that they say ends a process, keeps memory or descriptors, or is believed. */
#define _GNU_SOURCE /* SOCK_CLOEXEC */

#include <fcntl.h>
#include <stddef.h>
#include <sys/un.h>

#include "ipc.h"

enum { MIB = 1 << 20, MOST_FILES = 128 };
static const size_t bytes = 4 * MIB;

/* The first words of a handle, and messages, as src/ipc has them. */
struct words {
    char magic[8];
    uint32_t version, is_plain, process, has_event;
    unsigned char socket[16], nonce[16], uuid[16];
    uint64_t number, range, range_bytes, offset, bytes;
};

struct question {
    uint32_t what, unused;
    tcuda_ipc_handle handle;
};

struct answer {
    uint32_t is_known, files, all, unused;
    uint64_t bytes[MOST_FILES];
};

enum { IMPORT = 1, IMPORT_MAPPED = 2, CLOSE = 3 };

static struct words words_of(const tcuda_ipc_handle *handle)
{
    struct words words;
    memcpy(&words, handle, sizeof words);
    return words;
}

static socklen_t name_of(const unsigned char name[16], struct sockaddr_un *address)
{
    char text[40] = "";
    for (int i = 0; i < 16; i++)
        snprintf(text + 2 * i, 3, "%02x", name[i]);
    memset(address, 0, sizeof *address);
    address->sun_family = AF_UNIX;
    snprintf(address->sun_path + 1, sizeof address->sun_path - 1, "tcuda-%s", text);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + 6 + 32);
}

/* A message with descriptors. */
static bool say(int to, const void *what, size_t length, const int *files, int count)
{
    union { struct cmsghdr head; char room[CMSG_SPACE(sizeof(int) * 200)]; } control;
    struct iovec part = { .iov_base = (void *)(uintptr_t)what, .iov_len = length };
    struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1 };
    if (count > 0) {
        memset(&control, 0, sizeof control);
        message.msg_control = &control;
        message.msg_controllen = CMSG_SPACE(sizeof(int) * (size_t)count);
        struct cmsghdr *head = CMSG_FIRSTHDR(&message);
        head->cmsg_level = SOL_SOCKET;
        head->cmsg_type = SCM_RIGHTS;
        head->cmsg_len = CMSG_LEN(sizeof(int) * (size_t)count);
        memcpy(CMSG_DATA(head), files, sizeof(int) * (size_t)count);
    }
    return sendmsg(to, &message, MSG_NOSIGNAL) == (ssize_t)length;
}

/* ---- The client is a stranger ---- */

static int connect_to(const tcuda_ipc_handle *handle)
{
    struct sockaddr_un address;
    const struct words words = words_of(handle);
    const socklen_t length = name_of(words.socket, &address);
    const int line = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    CHECK(line >= 0);
    CHECK_EQ(connect(line, (struct sockaddr *)&address, length), 0);
    return line;
}

/* What comes back within a second: bytes; 0: the other hung up; -1: nothing. */
static ssize_t hear_back(int line, void *to, size_t room)
{
    struct timeval second = { .tv_sec = 1 };
    CHECK_EQ(setsockopt(line, SOL_SOCKET, SO_RCVTIMEO, &second, sizeof second), 0);
    const ssize_t count = recv(line, to, room, 0);
    return count < 0 && errno == ECONNRESET ? 0 : count;
}

static void hangs_up_on(const tcuda_ipc_handle *handle, const void *what, size_t length, int files)
{
    char back[sizeof(struct answer)];
    int numbers[200];
    const int line = connect_to(handle);
    for (int i = 0; i < files; i++)
        numbers[i] = line;
    CHECK(say(line, what, length, numbers, files));
    CHECK_EQ(hear_back(line, back, sizeof back), 0);
    close(line);
}

static void talks_nonsense(int line)
{
    static char noise[1 << 16];
    struct answer answer;
    const tcuda_ipc_handle handle = hear_handle(line);
    struct question question = { .what = IMPORT, .handle = handle };
    memset(noise, 0xa5, sizeof noise);
    hangs_up_on(&handle, noise, 1, 0);
    hangs_up_on(&handle, noise, sizeof question - 1, 0);
    hangs_up_on(&handle, noise, sizeof question, 0);
    hangs_up_on(&handle, noise, sizeof noise, 0);
    hangs_up_on(&handle, noise, 8, 100);
    question.what = 0;
    hangs_up_on(&handle, &question, sizeof question, 0);
    question.what = UINT32_MAX;
    hangs_up_on(&handle, &question, sizeof question, 100);
    /* More than a message of its own ever has. */
    hangs_up_on(&handle, noise, 8, 200);
    /* A handle with one bit changed, closing what was never opened, and unexpected
     * descriptors. */
    const int asks = connect_to(&handle);
    question.what = IMPORT;
    question.handle.bytes[400] ^= 1;
    int numbers[3] = { asks, asks, asks };
    CHECK(say(asks, &question, sizeof question, numbers, 3));
    CHECK_EQ(hear_back(asks, &answer, sizeof answer), sizeof answer);
    CHECK_EQ(answer.is_known, 0);
    question.what = CLOSE;
    for (int i = 0; i < 3; i++) {
        CHECK(say(asks, &question, sizeof question, NULL, 0));
        question.handle = handle;
    }
    /* It gets a block once, without and with descriptors, and releases it more often than that. */
    question.what = IMPORT_MAPPED;
    CHECK(say(asks, &question, sizeof question, NULL, 0));
    CHECK_EQ(hear_back(asks, &answer, sizeof answer), sizeof answer);
    CHECK_EQ(answer.is_known, 1);
    CHECK_EQ(answer.files, 0);
    question.what = IMPORT;
    CHECK(say(asks, &question, sizeof question, NULL, 0));
    CHECK_EQ(hear_back(asks, &answer, sizeof answer), sizeof answer);
    CHECK_EQ(answer.is_known, 0);
    nod(line);
    wait_for_nod(line);
    question.what = CLOSE;
    for (int i = 0; i < 3; i++)
        CHECK(say(asks, &question, sizeof question, NULL, 0));
    /* Many at once, some of which say nothing, and all leave. */
    int crowd[200];
    for (int i = 0; i < 200; i++) {
        crowd[i] = connect_to(&handle);
        if (i % 3 == 0)
            CHECK(say(crowd[i], noise, 5, NULL, 0));
    }
    for (int i = 0; i < 200; i++)
        close(crowd[i]);
    nod(line);
    wait_for_nod(line);
    close(asks);
}

static void imports_after_them(int line)
{
    const tcuda_ipc_handle handle = hear_handle(line);
    void *ptr = import_block(&handle, NULL, bytes);
    CHECK_EQ(count_other_bytes(ptr, 7, bytes, NULL), 0);
    CHECK_OK(tcuda_ipc_close(ptr, NULL));
}

static void strangers_ask(void)
{
    int line, friendly;
    const pid_t partner = start_partner(talks_nonsense, &line);
    const pid_t friend = start_partner(imports_after_them, &friendly);
    void *block = allocate(bytes, 0, NULL), *other = allocate(bytes, 0, NULL);
    fill_bytes(block, 7, bytes, NULL);
    fill_bytes(other, 7, bytes, NULL);
    const tcuda_ipc_handle kept = export_block(other, NULL);
    const size_t files = open_files();
    const tcuda_ipc_handle handle = export_block(block, NULL);
    tell(line, &handle, sizeof handle);
    wait_for_nod(line);
    /* The stranger has it. */
    CHECK_OK(tcuda_free(block));
    CHECK_OK(tcuda_ipc_collect());
    CHECK_EQ(allocated_now(), 2 * bytes);
    nod(line);
    wait_for_nod(line);
    collect_until(bytes);
    nod(line);
    end_partner(partner, line);
    tell(friendly, &kept, sizeof kept);
    end_partner(friend, friendly);
    CHECK_OK(tcuda_free(other));
    collect_until(0);
    for (int i = 0; i < 1000 && open_files() > files; i++)
        sleep_ms(1);
    CHECK(open_files() <= files);
    exit(finish());
}

/* ---- The server is a stranger ---- */

enum { HANGS_UP, SHORT, LONG, NO, PROMISES, MORE_THAN_ROOM, NEVER_ENDS, NO_SIZES, TOO_LARGE,
    OVERFLOWS, NO_MEMORY, TOO_MANY, PARTS_AND_END, FORMS };

static void answer_as(int form, int line, int file)
{
    static char noise[1 << 15];
    struct answer answer = { .is_known = 1, .files = 1, .all = 1, .bytes = { bytes } };
    int files[200];
    for (int i = 0; i < 200; i++)
        files[i] = file;
    size_t length = sizeof answer;
    int count = 1;
    switch (form) {
    case HANGS_UP: return;
    case SHORT: length = 7; break;
    case LONG:
        (void)say(line, noise, sizeof noise, files, 100);
        return;
    case NO: answer.is_known = 0; break;
    case PROMISES: answer.files = answer.all = 5; break;
    case MORE_THAN_ROOM: answer.files = answer.all = count = 200; break;
    case NEVER_ENDS:
        answer.all = UINT32_MAX;
        (void)say(line, &answer, length, files, 1);
        answer.files = 0;
        count = 0;
        break;
    case NO_SIZES: answer.bytes[0] = 0; break;
    case TOO_LARGE: answer.bytes[0] = bytes + 1; break;
    case OVERFLOWS:
        answer.files = answer.all = 3;
        count = 3;
        answer.bytes[0] = answer.bytes[1] = UINT64_MAX;
        answer.bytes[2] = bytes + 2;
        break;
    case NO_MEMORY: break;
    case TOO_MANY: count = 2; break;
    case PARTS_AND_END:
        answer.all = 2;
        break;
    }
    (void)say(line, &answer, length, files, count);
}

static void gives_nonsense(int line)
{
    struct sockaddr_un address;
    struct question question;
    unsigned char name[16];
    hear(line, name, sizeof name);
    const socklen_t length = name_of(name, &address);
    const int listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    const int file = open("/dev/null", O_RDWR | O_CLOEXEC);
    CHECK(listener >= 0 && file >= 0);
    CHECK_EQ(bind(listener, (struct sockaddr *)&address, length), 0);
    CHECK_EQ(listen(listener, 8), 0);
    nod(line);
    for (int form = HANGS_UP; form < FORMS; form++) {
        const int asks = accept(listener, NULL, NULL);
        CHECK(asks >= 0);
        CHECK_EQ(recv(asks, &question, sizeof question, 0), sizeof question);
        CHECK_EQ(question.what, IMPORT);
        answer_as(form, asks, file);
        close(asks);
    }
    close(file);
    close(listener);
}

static void strangers_answer(void)
{
    int line;
    const pid_t partner = start_partner(gives_nonsense, &line);
    tcuda_device_info properties = TCUDA_INIT(tcuda_device_info);
    struct words words = { .magic = { 't', 'c', 'u', 'd', 'a', 'i', 'p', 'c' }, .version = 1,
        .process = 1, .number = 1, .range = 2, .range_bytes = bytes, .bytes = bytes };
    tcuda_ipc_handle handle = { { 0 } };
    CHECK_OK(tcuda_device_properties(0, &properties));
    memcpy(words.uuid, properties.uuid, sizeof words.uuid);
    const int pid = (int)getpid();
    memcpy(words.socket, &pid, sizeof pid);
    memcpy(&handle, &words, sizeof words);
    tell(line, words.socket, sizeof words.socket);
    wait_for_nod(line);
    void *none = NULL;
    size_t files = 0;
    for (int form = HANGS_UP; form < FORMS; form++) {
        const tcuda_status status = tcuda_ipc_import(&handle, NULL, &none, NULL);
        CHECK(status != TCUDA_STATUS_OK && status != TCUDA_STATUS_INTERNAL);
        if (form <= NO)
            CHECK(status == TCUDA_STATUS_PEER_GONE || status == TCUDA_STATUS_INVALID_ARGUMENT);
        CHECK(none == NULL);
        if (form == HANGS_UP)
            files = open_files();
        if (recovery_file() == NULL)
            CHECK_EQ(open_files(), files);
        CHECK_EQ(calls_of("cuMemAddressReserve"), calls_of("cuMemAddressFree"));
    }
    CHECK_STATUS(TCUDA_STATUS_INVALID_POINTER, tcuda_ipc_close(&handle, NULL));
    end_partner(partner, line);
    /* It is gone. */
    CHECK_STATUS(TCUDA_STATUS_PEER_GONE, tcuda_ipc_import(&handle, NULL, &none, NULL));
    exit(finish());
}

/* ---- Programs that are run ---- */

/* What a process that shares memory runs has none of it, and nothing that answers for it. */
static void programs_get_nothing(void)
{
    void *block = allocate(bytes, 0, NULL);
    const size_t before = open_files();
    const tcuda_ipc_handle handle = export_block(block, NULL);
    CHECK(in_segments() || open_files() >= before + 2);
    for (int file = 3; file < 1024 && on_simulator(); file++) {
        const int flags = fcntl(file, F_GETFD);
        char path[64], target[300];
        snprintf(path, sizeof path, "/proc/self/fd/%d", file);
        const ssize_t length = readlink(path, target, sizeof target - 1);
        if (flags < 0 || length < 0)
            continue;
        target[length] = '\0';
        if (strstr(target, "simulated") || strstr(target, "socket:") || strstr(target, "eventfd"))
            CHECK(flags & FD_CLOEXEC);
    }
    CHECK_OK(tcuda_ipc_withdraw(&handle));
    CHECK_OK(tcuda_free(block));
    exit(finish());
}

int main(void)
{
    if (is_without_gpu())
        return CHECK_SKIPPED;
    CASE(programs_get_nothing);
    CASE(strangers_ask);
    CASE(strangers_answer);
    return finish_cases();
}
