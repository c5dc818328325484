/* The state of a thread, in one initial-exec TLS block: an access is two loads, where Rust's own
 * thread-local storage in a shared library costs a call of __tls_get_addr. */
#include <stdint.h>

/* Kept small: initial-exec blocks of libraries loaded by dlopen share about 1.6 KiB. The layout is
 * repeated in src/base/thread.rs, which checks its size. */
struct tcuda_thread {
    uint64_t words[14];
};

/* Located by its symbol in src/base/thread.rs on x86-64, by a call on other machines. */
extern __thread struct tcuda_thread tcuda_thread
    __attribute__((tls_model("initial-exec"), visibility("hidden")));
/* Compilers align larger objects more than is needed, unless an alignment is given. */
__thread struct tcuda_thread tcuda_thread __attribute__((aligned(8)));

struct tcuda_thread *tcuda_thread_block(void);

struct tcuda_thread *tcuda_thread_block(void)
{
    return &tcuda_thread;
}
