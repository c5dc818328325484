/* For tests, to be preloaded: makes a call of the C library fail, of those that libtcuda.so makes
 * itself; what the program and other libraries call is left alone.
 *
 * TCUDA_LIBC_FAULTS is "malloc@3=fail": the third call of malloc; with a ! at the end every later
 * one too; * stands for any of the functions below. What comes out is what the function gives when
 * it fails for want of something: no function fails here that cannot. */
#define _GNU_SOURCE

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

#include "libc_faults.h"

/* glibc's own, which need no look-up: dlsym itself allocates. */
void *__libc_malloc(size_t);
void *__libc_calloc(size_t, size_t);
void *__libc_realloc(void *, size_t);
void *__libc_memalign(size_t, size_t);

enum { NAME = 32 };

static char target[NAME];
static atomic_bool is_armed;
static bool forever;
static atomic_ullong remaining;
static atomic_ullong fired;
static uintptr_t first_address, last_address;

static int find_library(struct dl_phdr_info *info, size_t size, void *unused)
{
    (void)size, (void)unused;
    if (strstr(info->dlpi_name, "/libtcuda.so") == NULL)
        return 0;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *const part = &info->dlpi_phdr[i];
        if (part->p_type == PT_LOAD && (part->p_flags & PF_X) != 0) {
            first_address = info->dlpi_addr + part->p_vaddr;
            last_address = first_address + part->p_memsz;
        }
    }
    return 1;
}

__attribute__((constructor)) static void read_the_environment(void)
{
    const char *const text = getenv("TCUDA_LIBC_FAULTS");
    const char *const at = text == NULL ? NULL : strchr(text, '@');
    if (at == NULL || at - text >= NAME)
        return;
    memcpy(target, text, (size_t)(at - text));
    atomic_store(&remaining, strtoull(at + 1, NULL, 10));
    forever = strchr(at, '!') != NULL;
    dl_iterate_phdr(find_library, NULL);
    atomic_store(&is_armed, first_address != 0);
}

unsigned long long libc_faults_fired(void)
{
    return atomic_load(&fired);
}

void libc_faults_disarm(void)
{
    atomic_store(&is_armed, false);
}

/* Counts a call that returns to `caller`; does it fail? */
static bool fails(const char *function, const void *caller)
{
    if (!atomic_load(&is_armed))
        return false;
    if ((uintptr_t)caller < first_address || (uintptr_t)caller >= last_address)
        return false;
    if (strcmp(target, "*") != 0 && strcmp(target, function) != 0)
        return false;
    unsigned long long left = atomic_load(&remaining);
    do {
        if (left == 0)
            return false;
    } while (!atomic_compare_exchange_weak(&remaining, &left, left == 1 && forever ? 1 : left - 1));
    if (left > 1)
        return false;
    atomic_fetch_add(&fired, 1);
    return true;
}

/* The next definition of a function, looked up once. */
#define NEXT(name) \
    static __typeof__(&name) next; \
    if (next == NULL) \
        *(void **)&next = dlsym(RTLD_NEXT, #name)

#define FAILS(name) fails(#name, __builtin_return_address(0))

#define GIVE(error, result) \
    do { \
        errno = (error); \
        return (result); \
    } while (0)

/* ---- Memory of the heap ---- */

void *malloc(size_t bytes)
{
    if (FAILS(malloc))
        GIVE(ENOMEM, NULL);
    return __libc_malloc(bytes);
}

void *calloc(size_t count, size_t bytes)
{
    if (FAILS(calloc))
        GIVE(ENOMEM, NULL);
    return __libc_calloc(count, bytes);
}

void *realloc(void *block, size_t bytes)
{
    if (FAILS(realloc))
        GIVE(ENOMEM, NULL);
    return __libc_realloc(block, bytes);
}

int posix_memalign(void **block, size_t alignment, size_t bytes)
{
    if (FAILS(posix_memalign))
        return ENOMEM;
    void *const made = __libc_memalign(alignment, bytes);
    if (made == NULL)
        return ENOMEM;
    *block = made;
    return 0;
}

/* ---- Mappings ---- */

void *mmap(void *address, size_t bytes, int protection, int flags, int file, off_t offset)
{
    NEXT(mmap);
    if (FAILS(mmap))
        GIVE(ENOMEM, MAP_FAILED);
    return next(address, bytes, protection, flags, file, offset);
}

void *mmap64(void *address, size_t bytes, int protection, int flags, int file, off64_t offset)
{
    NEXT(mmap64);
    if (fails("mmap", __builtin_return_address(0)))
        GIVE(ENOMEM, MAP_FAILED);
    return next(address, bytes, protection, flags, file, offset);
}

int mprotect(void *address, size_t bytes, int protection)
{
    NEXT(mprotect);
    if (FAILS(mprotect))
        GIVE(ENOMEM, -1);
    return next(address, bytes, protection);
}

int munmap(void *address, size_t bytes)
{
    NEXT(munmap);
    if (FAILS(munmap)) /* it would split a mapping where there are too many */
        GIVE(ENOMEM, -1);
    return next(address, bytes);
}

int madvise(void *address, size_t bytes, int advice)
{
    NEXT(madvise);
    if (FAILS(madvise))
        GIVE(EAGAIN, -1);
    return next(address, bytes, advice);
}

/* ---- Files ---- */

int ftruncate(int file, off_t bytes)
{
    NEXT(ftruncate);
    if (FAILS(ftruncate))
        GIVE(EFBIG, -1);
    return next(file, bytes);
}

int fallocate(int file, int mode, off_t offset, off_t bytes)
{
    NEXT(fallocate);
    if (FAILS(fallocate))
        GIVE(ENOSPC, -1);
    return next(file, mode, offset, bytes);
}

int open64(const char *path, int flags, ...)
{
    NEXT(open64);
    va_list arguments;
    va_start(arguments, flags);
    const mode_t mode = (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(arguments, mode_t) : 0;
    va_end(arguments);
    if (fails("open", __builtin_return_address(0)))
        GIVE(EMFILE, -1);
    return next(path, flags, mode);
}

ssize_t read(int file, void *bytes, size_t count)
{
    NEXT(read);
    if (FAILS(read))
        GIVE(EIO, -1);
    return next(file, bytes, count);
}

ssize_t write(int file, const void *bytes, size_t count)
{
    NEXT(write);
    if (FAILS(write))
        GIVE(ENOSPC, -1);
    return next(file, bytes, count);
}

/* ---- Threads ---- */

int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*body)(void *),
    void *argument)
{
    NEXT(pthread_create);
    if (FAILS(pthread_create))
        return EAGAIN;
    return next(thread, attributes, body, argument);
}

int pthread_key_create(pthread_key_t *key, void (*destroy)(void *))
{
    NEXT(pthread_key_create);
    if (FAILS(pthread_key_create))
        return EAGAIN;
    return next(key, destroy);
}

int pthread_setspecific(pthread_key_t key, const void *value)
{
    NEXT(pthread_setspecific);
    if (FAILS(pthread_setspecific))
        return ENOMEM;
    return next(key, value);
}

/* What pthread_atfork is in a program. */
int __register_atfork(void (*prepare)(void), void (*parent)(void), void (*child)(void),
    void *owner);

int __register_atfork(void (*prepare)(void), void (*parent)(void), void (*child)(void), void *owner)
{
    NEXT(__register_atfork);
    if (fails("pthread_atfork", __builtin_return_address(0)))
        return ENOMEM;
    return next(prepare, parent, child, owner);
}

/* ---- Others ---- */

void *dlopen(const char *path, int mode)
{
    NEXT(dlopen);
    if (FAILS(dlopen))
        return NULL;
    return next(path, mode);
}

/* What the library calls by number; a futex has no failure that excuses. */
long syscall(long number, ...)
{
    NEXT(syscall);
    long a[6];
    va_list arguments;
    va_start(arguments, number);
    for (int i = 0; i < 6; i++)
        a[i] = va_arg(arguments, long);
    va_end(arguments);
    if (number == SYS_membarrier && fails("membarrier", __builtin_return_address(0)))
        GIVE(EPERM, -1);
    if (number == SYS_memfd_create && fails("memfd_create", __builtin_return_address(0)))
        GIVE(EMFILE, -1);
    if (number == SYS_getrandom && fails("getrandom", __builtin_return_address(0)))
        GIVE(ENOSYS, -1);
    return next(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}
