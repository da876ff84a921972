/* A FUSE view of a folder that answers as late as a busy server, of whatever number of threads asks it.

       cc -O2 -rdynamic slow_files.c -o slow_files $(pkg-config --cflags --libs fuse3)
       slow_files FOLDER MOUNT META_US READ_US SYNC_US WRITE_MB_S THREADS

   META_US is what a look-up, an open and a listing take, READ_US a read, SYNC_US an fsync; all writes share
   WRITE_MB_S, 0 for no bound. Names and sizes are kept by the kernel for a second, as usual. Needs libfuse3-dev. */
#define _GNU_SOURCE
#define FUSE_USE_VERSION FUSE_MAKE_VERSION(3, 12)
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <fuse.h>
#include <limits.h>
#include <linux/fuse.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

static const char *root;
static long meta_us, read_us, sync_us;
static double bytes_per_us;
static pthread_mutex_t turnstile = PTHREAD_MUTEX_INITIALIZER;
static double free_at;

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1e6 + t.tv_nsec / 1e3;
}

static void wait_us(double us) {
  if (us <= 0) return;
  struct timespec t = {(time_t)(us / 1e6), (long)(us * 1e3) % 1000000000};
  nanosleep(&t, NULL);
}

static const char *at(const char *path, char *full) {
  snprintf(full, PATH_MAX, "%s%s", root, path);
  return full;
}

#define PATH(name, path) char name##_[PATH_MAX]; const char *name = at(path, name##_)
#define DONE(call) return (call) < 0 ? -errno : 0

/* libfuse 3.14 does not tell the kernel that look-ups in one folder may run side by side, as every file server's client
   lets them: its answer to the kernel's first request passes here, and is told so. */
ssize_t writev(int descriptor, const struct iovec *parts, int count) {
  static int is_told;
  if (!is_told && count == 2 && parts[1].iov_len >= sizeof(struct fuse_init_out)) {
    is_told = 1;
    ((struct fuse_init_out *)parts[1].iov_base)->flags |= FUSE_PARALLEL_DIROPS;
  }
  return syscall(SYS_writev, descriptor, parts, count);
}

static void *init(struct fuse_conn_info *conn, struct fuse_config *config) {
  conn->max_background = 1024;
  conn->congestion_threshold = 1024;
  config->use_ino = 1;
  return NULL;
}

static int get_attributes(const char *path, struct stat *status, struct fuse_file_info *info) {
  wait_us(meta_us);
  if (info) DONE(fstat(info->fh, status));
  PATH(full, path);
  DONE(lstat(full, status));
}

static int list(const char *path, void *buffer, fuse_fill_dir_t fill, off_t offset, struct fuse_file_info *info,
                enum fuse_readdir_flags flags) {
  (void)offset, (void)info, (void)flags;
  wait_us(meta_us);
  PATH(full, path);
  DIR *folder = opendir(full);
  if (!folder) return -errno;
  for (struct dirent *entry; (entry = readdir(folder));) {
    struct stat status = {.st_ino = entry->d_ino, .st_mode = entry->d_type << 12};
    fill(buffer, entry->d_name, &status, 0, 0);
  }
  closedir(folder);
  return 0;
}

static int open_file(const char *path, struct fuse_file_info *info) {
  wait_us(meta_us);
  PATH(full, path);
  int descriptor = open(full, info->flags & ~(O_DIRECT | O_NONBLOCK));
  info->fh = descriptor;
  DONE(descriptor);
}

static int create_file(const char *path, mode_t mode, struct fuse_file_info *info) {
  wait_us(meta_us);
  PATH(full, path);
  int descriptor = open(full, info->flags, mode);
  info->fh = descriptor;
  DONE(descriptor);
}

static int read_file(const char *path, char *data, size_t size, off_t offset, struct fuse_file_info *info) {
  (void)path;
  wait_us(read_us);
  ssize_t count = pread(info->fh, data, size, offset);
  return count < 0 ? -errno : (int)count;
}

static int write_file(const char *path, const char *data, size_t size, off_t offset, struct fuse_file_info *info) {
  (void)path;
  if (bytes_per_us > 0) {
    pthread_mutex_lock(&turnstile);
    double moment = now();
    free_at = (free_at > moment ? free_at : moment) + size / bytes_per_us;
    double turn = free_at - moment;
    pthread_mutex_unlock(&turnstile);
    wait_us(turn);
  }
  ssize_t count = pwrite(info->fh, data, size, offset);
  return count < 0 ? -errno : (int)count;
}

static int sync_path(const char *path, int only_data, struct fuse_file_info *info) {
  (void)path, (void)only_data, (void)info;
  wait_us(sync_us);
  return 0;
}

static int release(const char *path, struct fuse_file_info *info) { (void)path; return close(info->fh), 0; }
static int remove_file(const char *path) { PATH(full, path); wait_us(meta_us); DONE(unlink(full)); }
static int make_folder(const char *path, mode_t mode) { PATH(full, path); wait_us(meta_us); DONE(mkdir(full, mode)); }
static int remove_folder(const char *path) { PATH(full, path); wait_us(meta_us); DONE(rmdir(full)); }
static int set_size(const char *path, off_t size, struct fuse_file_info *info) {
  if (info) DONE(ftruncate(info->fh, size));
  PATH(full, path);
  DONE(truncate(full, size));
}
static int set_mode(const char *path, mode_t mode, struct fuse_file_info *info) {
  (void)info;
  PATH(full, path);
  DONE(chmod(full, mode));
}
static int set_times(const char *path, const struct timespec times[2], struct fuse_file_info *info) {
  (void)info;
  PATH(full, path);
  DONE(utimensat(AT_FDCWD, full, times, AT_SYMLINK_NOFOLLOW));
}
static int make_link(const char *from, const char *to) {
  PATH(one, from);
  PATH(two, to);
  wait_us(meta_us);
  DONE(link(one, two));
}
static int rename_path(const char *from, const char *to, unsigned flags) {
  PATH(one, from);
  PATH(two, to);
  wait_us(meta_us);
  DONE(renameat2(AT_FDCWD, one, AT_FDCWD, two, flags));
}
static int free_space(const char *path, struct statvfs *status) { PATH(full, path); DONE(statvfs(full, status)); }

int main(int count, char **words) {
  if (count != 8) return fprintf(stderr, "see the comment in slow_files.c\n"), 2;
  root = realpath(words[1], NULL);
  meta_us = atol(words[3]), read_us = atol(words[4]), sync_us = atol(words[5]), bytes_per_us = atof(words[6]);
  struct fuse_operations operations = {
      .init = init, .getattr = get_attributes, .readdir = list, .open = open_file, .create = create_file,
      .read = read_file, .write = write_file, .fsync = sync_path, .fsyncdir = sync_path, .release = release,
      .unlink = remove_file, .mkdir = make_folder, .rmdir = remove_folder, .rename = rename_path, .link = make_link,
      .truncate = set_size, .chmod = set_mode, .utimens = set_times, .statfs = free_space};
  char *options[] = {words[0], "-o", "fsname=slowfiles"};
  struct fuse_args args = FUSE_ARGS_INIT(3, options);
  struct fuse *server = fuse_new(&args, &operations, sizeof operations, NULL);
  struct fuse_loop_config *threads = fuse_loop_cfg_create();
  fuse_loop_cfg_set_max_threads(threads, atoi(words[7]));
  fuse_loop_cfg_set_idle_threads(threads, atoi(words[7]));
  if (!server || fuse_mount(server, words[2])) return 1;
  fuse_set_signal_handlers(fuse_get_session(server));
  int result = fuse_loop_mt(server, threads);
  fuse_unmount(server);
  return result;
}
