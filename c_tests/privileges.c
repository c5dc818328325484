/* The environment of a program that runs with the privileges of another is its caller's, which must
 * not choose what it loads, nor what fails in it: such a program ignores the variables of tcuda.
 * The program runs a copy of itself that changes its group, which adds no privileges. */
#define _GNU_SOURCE /* getauxval */

#include <fcntl.h>
#include <sys/auxv.h>
#include <sys/stat.h>
#include <unistd.h>

#include "support.h"

static void believes(bool expected)
{
    CHECK_EQ(setenv("TCUDA_BACKEND", "sim", 1), 0);
    CHECK_STR(tcuda_backend_name(), expected ? "sim" : "cuda");
    CHECK_EQ(setenv("TCUDA_FAULTS", "nonsense", 1), 0);
    CHECK_EQ(tcuda_init() == TCUDA_STATUS_INVALID_ARGUMENT, expected);
}

/* A group that is not ours at the moment, and to which a file of ours may be given. */
static gid_t another_group(void)
{
    gid_t groups[256];
    const int count = getgroups(256, groups);
    for (int i = 0; i < count; i++)
        if (groups[i] != getgid() && groups[i] != getegid())
            return groups[i];
    return geteuid() == 0 ? 65534 : getegid();
}

static void copy_to(int copy)
{
    char part[1 << 16];
    const int self = open("/proc/self/exe", O_RDONLY);
    CHECK(self >= 0);
    for (ssize_t bytes; (bytes = read(self, part, sizeof part)) > 0;)
        CHECK_EQ(write(copy, part, (size_t)bytes), bytes);
    CHECK_EQ(close(self), 0);
}

static int status_of_the_copy(void)
{
    char path[] = "/tmp/tcuda_privileges_XXXXXX";
    int status = 0;
    const int copy = mkstemp(path);
    CHECK(copy >= 0);
    copy_to(copy);
    CHECK_EQ(fchown(copy, (uid_t)-1, another_group()), 0);
    CHECK_EQ(fchmod(copy, S_ISGID | 0755), 0);
    CHECK_EQ(close(copy), 0);
    fflush(NULL);
    const pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        execl(path, path, "raised", (char *)NULL);
        _exit(CHECK_SKIPPED);
    }
    CHECK_EQ(waitpid(child, &status, 0), child);
    CHECK_EQ(unlink(path), 0);
    return child_status(status);
}

int main(int count, char **arguments)
{
    if (count > 1 && strcmp(arguments[1], "raised") == 0) {
        if (getauxval(AT_SECURE) == 0)
            return CHECK_SKIPPED;
        believes(false);
        return EXIT_SUCCESS;
    }
    const int status = another_group() == getegid() ? CHECK_SKIPPED : status_of_the_copy();
    if (status == CHECK_SKIPPED)
        printf("skipped: no program of other privileges can be made here\n");
    if (status != EXIT_SUCCESS)
        return status;
    believes(true);
    return EXIT_SUCCESS;
}
