/* Preloaded into a service, keeps calls on some of its files waiting for as long as a control file exists.
 *
 * STUCK_CONTROL in the environment is the control file's path; it contains a part of the path of the files that are
 * stuck. What is in the page cache would be read without the disk: here nothing is in it (EAGAIN for RWF_NOWAIT).
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

/* Whether files of this path are stuck now. */
static int is_stuck_path(const char *path)
{
    const char *control = getenv("STUCK_CONTROL");
    char part[256];
    int descriptor;
    ssize_t length;

    if (control == NULL || path == NULL)
        return 0;
    descriptor = (int)syscall(SYS_openat, AT_FDCWD, control, O_RDONLY | O_CLOEXEC);
    if (descriptor < 0)
        return 0;
    length = syscall(SYS_pread64, descriptor, part, sizeof part - 1, 0L);
    syscall(SYS_close, descriptor);
    if (length <= 0)
        return 0;
    part[length] = '\0';
    return strstr(path, part) != NULL;
}

static int is_stuck(int descriptor)
{
    char link[64], path[4096];
    ssize_t length;

    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    length = readlink(link, path, sizeof path - 1);
    if (length < 0)
        return 0;
    path[length] = '\0';
    return is_stuck_path(path);
}

static void wait_for(int descriptor)
{
    int saved = errno;
    while (is_stuck(descriptor))
        usleep(1000);
    errno = saved;
}

static void wait_for_path(const char *path)
{
    int saved = errno;
    while (is_stuck_path(path))
        usleep(1000);
    errno = saved;
}

#define STUCK(type, name, parameters, types, arguments)                                                            \
    type name parameters                                                                                           \
    {                                                                                                              \
        wait_for(fd);                                                                                              \
        return ((type(*) types)dlsym(RTLD_NEXT, #name))arguments;                                                  \
    }

STUCK(ssize_t, pread64, (int fd, void *data, size_t n, off64_t at), (int, void *, size_t, off64_t), (fd, data, n, at))
STUCK(ssize_t, pread, (int fd, void *data, size_t n, off_t at), (int, void *, size_t, off_t), (fd, data, n, at))
STUCK(ssize_t, pwritev64, (int fd, const struct iovec *v, int n, off64_t at), (int, const struct iovec *, int, off64_t),
      (fd, v, n, at))
STUCK(ssize_t, pwritev, (int fd, const struct iovec *v, int n, off_t at), (int, const struct iovec *, int, off_t),
      (fd, v, n, at))
STUCK(ssize_t, pwrite64, (int fd, const void *data, size_t n, off64_t at), (int, const void *, size_t, off64_t),
      (fd, data, n, at))
STUCK(ssize_t, pwrite, (int fd, const void *data, size_t n, off_t at), (int, const void *, size_t, off_t),
      (fd, data, n, at))
STUCK(int, fdatasync, (int fd), (int), (fd))
STUCK(int, fsync, (int fd), (int), (fd))
STUCK(int, ftruncate64, (int fd, off64_t size), (int, off64_t), (fd, size))
STUCK(int, ftruncate, (int fd, off_t size), (int, off_t), (fd, size))

#define STUCK_NOWAIT(name, offset)                                                                                 \
    ssize_t name(int fd, const struct iovec *v, int n, offset at, int flags)                                       \
    {                                                                                                              \
        if ((flags & RWF_NOWAIT) && is_stuck(fd)) {                                                                \
            errno = EAGAIN;                                                                                        \
            return -1;                                                                                             \
        }                                                                                                          \
        wait_for(fd);                                                                                              \
        return ((ssize_t(*)(int, const struct iovec *, int, offset, int))dlsym(RTLD_NEXT, #name))(fd, v, n, at,    \
                                                                                                  flags);          \
    }

STUCK_NOWAIT(preadv2, off_t)
STUCK_NOWAIT(preadv64v2, off64_t)
STUCK_NOWAIT(pwritev2, off_t)
STUCK_NOWAIT(pwritev64v2, off64_t)

#define STUCK_OPEN(name)                                                                                           \
    int name(const char *path, int flags, ...)                                                                     \
    {                                                                                                              \
        va_list rest;                                                                                              \
        mode_t mode;                                                                                               \
        va_start(rest, flags);                                                                                     \
        mode = va_arg(rest, mode_t);                                                                               \
        va_end(rest);                                                                                              \
        wait_for_path(path);                                                                                       \
        return ((int (*)(const char *, int, ...))dlsym(RTLD_NEXT, #name))(path, flags, mode);                      \
    }

STUCK_OPEN(open)
STUCK_OPEN(open64)

int rename(const char *from, const char *to)
{
    wait_for_path(to);
    return ((int (*)(const char *, const char *))dlsym(RTLD_NEXT, "rename"))(from, to);
}

int unlink(const char *path)
{
    wait_for_path(path);
    return ((int (*)(const char *))dlsym(RTLD_NEXT, "unlink"))(path);
}
