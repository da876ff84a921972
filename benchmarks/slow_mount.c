/* A read-only FUSE view of a folder whose reads take a given time; benchmarks/slow_mount.py builds and mounts it.

     slow_mount FOLDER MOUNT MILLISECONDS MEGABYTES COUNTS

   Each of up to 256 threads answers one request, so that any number of reads wait side by side and none takes the
   cores' time while it waits. Reads come past the page cache (direct_io), so that a second read of a record is as slow
   as the first. Opening and looking take no time: only reads do. After its time each read takes its turn at MEGABYTES a
   second, which all readers share (0 for no limit), and the file COUNTS holds the bytes read so far in decimal digits.
*/
#define FUSE_USE_VERSION 312
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fuse.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <fcntl.h>
#include <unistd.h>

static const char *folder;
static struct timespec wait_for;
static double bytes_per_second;
static int counts = -1;

/* Counts a read, and waits for its turn at the bandwidth. */
static void take_turn(size_t size) {
    static pthread_mutex_t turnstile = PTHREAD_MUTEX_INITIALIZER;
    static double free_at;
    static unsigned long long num_read;
    struct timespec now;
    pthread_mutex_lock(&turnstile);
    num_read += size;
    char digits[24];
    if (counts >= 0 && pwrite(counts, digits, (size_t)snprintf(digits, sizeof digits, "%llu", num_read), 0) < 0)
        perror("counts");
    clock_gettime(CLOCK_MONOTONIC, &now);
    double seconds = (double)now.tv_sec + (double)now.tv_nsec / 1e9;
    if (free_at < seconds) free_at = seconds;
    if (bytes_per_second > 0) free_at += (double)size / bytes_per_second;
    double turn = free_at;
    pthread_mutex_unlock(&turnstile);
    struct timespec until = {(time_t)turn, (long)((turn - (double)(time_t)turn) * 1e9)};
    clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL);
}

static const char *below(const char *path, char *buffer) {
    snprintf(buffer, PATH_MAX, "%s%s", folder, path);
    return buffer;
}

static int look(const char *path, struct stat *status, struct fuse_file_info *info) {
    char name[PATH_MAX];
    (void)info;
    return lstat(below(path, name), status) ? -errno : 0;
}

static int list(const char *path, void *buffer, fuse_fill_dir_t fill, off_t offset, struct fuse_file_info *info,
                enum fuse_readdir_flags flags) {
    char name[PATH_MAX];
    DIR *entries = opendir(below(path, name));
    (void)offset, (void)info, (void)flags;
    if (!entries) return -errno;
    for (struct dirent *entry; (entry = readdir(entries));) fill(buffer, entry->d_name, NULL, 0, 0);
    closedir(entries);
    return 0;
}

static int open_file(const char *path, struct fuse_file_info *info) {
    char name[PATH_MAX];
    int descriptor = open(below(path, name), O_RDONLY | O_CLOEXEC);
    if (descriptor < 0) return -errno;
    info->fh = descriptor;
    info->direct_io = 1;
    return 0;
}

static int read_file(const char *path, struct fuse_bufvec **answer, size_t size, off_t offset,
                     struct fuse_file_info *info) {
    struct fuse_bufvec *from = malloc(sizeof *from);
    struct stat status;
    (void)path;
    if (!from) return -ENOMEM;
    if (wait_for.tv_sec || wait_for.tv_nsec) nanosleep(&wait_for, NULL);
    if (!fstat((int)info->fh, &status) && offset < status.st_size) {
        size_t left = (size_t)(status.st_size - offset);
        take_turn(left < size ? left : size);
    }
    *from = FUSE_BUFVEC_INIT(size);
    from->buf[0].flags = FUSE_BUF_IS_FD | FUSE_BUF_FD_SEEK;
    from->buf[0].fd = info->fh;
    from->buf[0].pos = offset;
    *answer = from;
    return 0;
}

static int release_file(const char *path, struct fuse_file_info *info) {
    (void)path;
    close(info->fh);
    return 0;
}

static void *begin(struct fuse_conn_info *connection, struct fuse_config *config) {
    (void)connection;
    config->attr_timeout = config->entry_timeout = 60;
    return NULL;
}

static const struct fuse_operations operations = {
    .init = begin, .getattr = look, .readdir = list, .open = open_file, .read_buf = read_file, .release = release_file,
};

int main(int count, char **given) {
    if (count != 6) {
        fprintf(stderr, "usage: slow_mount FOLDER MOUNT MILLISECONDS MEGABYTES COUNTS\n");
        return 2;
    }
    char resolved[PATH_MAX];
    folder = realpath(given[1], resolved);
    if (!folder) {
        perror(given[1]);
        return 1;
    }
    bytes_per_second = atof(given[4]) * 1e6;
    counts = open(given[5], O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    double seconds = atof(given[3]) / 1000;
    wait_for.tv_sec = (time_t)seconds;
    wait_for.tv_nsec = (long)((seconds - (double)wait_for.tv_sec) * 1e9);

    char *arguments[] = {given[0], "-oro,allow_other,default_permissions,fsname=slow_mount,subtype=slow_mount", NULL};
    struct fuse_args args = FUSE_ARGS_INIT(2, arguments);
    struct fuse *fuse = fuse_new(&args, &operations, sizeof operations, NULL);
    if (!fuse || fuse_mount(fuse, given[2])) return 1;
    fuse_set_signal_handlers(fuse_get_session(fuse));
    struct fuse_loop_config *loop = fuse_loop_cfg_create();
    fuse_loop_cfg_set_max_threads(loop, 256);
    fuse_loop_cfg_set_idle_threads(loop, 256);
    int failed = fuse_loop_mt(fuse, loop);
    fuse_unmount(fuse);
    fuse_destroy(fuse);
    return failed != 0;
}
