/* Asks for paths of RDMA devices through each function that is replaced: prints "NAME result". */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <limits.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define GUID "/sys/class/infiniband/rxe_t/node_guid"
#define LINK "/sys/class/infiniband/rxe_t/device"
#define FOLDER "/sys/class/infiniband"
#define DEVICE "/dev/infiniband/uverbs0"

static void say(const char *name, int right) { printf("%s %s\n", name, right ? "ok" : "FAILED"); }

static int has_guid(int fd)
{
	char text[5] = "";
	int right = fd >= 0 && read(fd, text, 4) == 4 && !strcmp(text, "1234");
	if (fd >= 0) close(fd);
	return right;
}

static int file_has_guid(FILE *file)
{
	char text[5] = "";
	int right = file && fgets(text, sizeof text, file) && !strcmp(text, "1234");
	if (file) fclose(file);
	return right;
}

static void *open_pipe(void *path)
{
	return (void *)(intptr_t)open(path, O_RDONLY);
}

/* A thread that waits in a call can be cancelled there. */
static int is_cancelled(const char *root)
{
	char path[PATH_MAX];
	pthread_t thread;
	void *result;

	snprintf(path, sizeof path, "%s/pipe", root);
	unlink(path);
	if (mkfifo(path, 0600) || pthread_create(&thread, NULL, open_pipe, path)) return 0;
	usleep(20000);
	return !pthread_cancel(thread) && !pthread_join(thread, &result) &&
		result == PTHREAD_CANCELED;
}

int main(void)
{
	struct stat s;
	struct stat64 s64;
	struct statx sx;
	struct dirent **list;
	struct dirent64 **list64;
	glob_t found;
	glob64_t found64;
	char text[PATH_MAX] = "";
	char *root = getenv("ROOT");

	/* What the program does to its environment later does not matter. */
	unsetenv("URXE_SYSFS");
	say("open", has_guid(open(GUID, O_RDONLY)));
	say("open64", has_guid(open64(GUID, O_RDONLY)));
	say("openat", has_guid(openat(AT_FDCWD, GUID, O_RDONLY)));
	say("openat64", has_guid(openat64(AT_FDCWD, GUID, O_RDONLY)));
	say("open-device", open(DEVICE, O_RDWR | O_CLOEXEC) >= 0);
	say("open-missing", open(FOLDER "/none", O_RDONLY) < 0 && errno == ENOENT);
	say("fopen", file_has_guid(fopen(GUID, "r")));
	say("fopen64", file_has_guid(fopen64(GUID, "r")));
	say("stat", !stat(DEVICE, &s) && S_ISCHR(s.st_mode));
	say("lstat", !lstat(DEVICE, &s) && S_ISCHR(s.st_mode));
	say("lstat-link", !lstat(LINK, &s) && S_ISLNK(s.st_mode));
	say("stat64", !stat64(DEVICE, &s64) && S_ISCHR(s64.st_mode));
	say("lstat64", !lstat64(DEVICE, &s64) && S_ISCHR(s64.st_mode));
	say("fstatat", !fstatat(AT_FDCWD, GUID, &s, 0) && s.st_size == 5);
	say("fstatat64", !fstatat64(AT_FDCWD, GUID, &s64, 0) && s64.st_size == 5);
	say("statx", !statx(AT_FDCWD, GUID, 0, STATX_SIZE, &sx) && sx.stx_size == 5);
	say("access", !access(DEVICE, R_OK | W_OK));
	say("eaccess", !eaccess(DEVICE, R_OK | W_OK));
	say("euidaccess", !euidaccess(DEVICE, R_OK | W_OK));
	say("faccessat", !faccessat(AT_FDCWD, GUID, R_OK, 0));
	say("opendir", opendir(FOLDER) != NULL);
	say("scandir", scandir(FOLDER, &list, NULL, alphasort) == 3);
	say("scandir64", scandir64(FOLDER, &list64, NULL, alphasort64) == 3);
	say("glob", !glob(FOLDER "/*/node_guid", 0, NULL, &found) && found.gl_pathc == 1);
	say("glob64", !glob64(FOLDER "/*/node_guid", 0, NULL, &found64) && found64.gl_pathc == 1);
	say("readlink", readlink(LINK, text, sizeof text) == 4 && !strncmp(text, "/tmp", 4));
	say("readlinkat", readlinkat(AT_FDCWD, LINK, text, sizeof text) == 4);
	say("realpath", realpath(GUID, text) && !strncmp(text, root, strlen(root)));
	say("realpath-null", realpath(LINK, NULL) && !strcmp(realpath(LINK, NULL), "/tmp"));
	say("canonicalize", canonicalize_file_name(GUID) != NULL);
	say("chdir", !chdir(FOLDER) && has_guid(open("rxe_t/node_guid", O_RDONLY)));
	say("cancelled", is_cancelled(root));
	say("null", stat(NULL, &s) < 0 && errno == EFAULT);
	return 0;
}
