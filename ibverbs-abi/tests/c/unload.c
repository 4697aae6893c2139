/* Loads the library, uses it, and unloads it, as programs with plugins do: its threads, and the
 * handlers that it has installed, stay. Built without the library. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <infiniband/verbs.h>
#undef ibv_reg_mr

#define CHECK(what) \
	do { \
		if (!(what)) { \
			fprintf(stderr, "line %d: %s\n", __LINE__, #what); \
			exit(1); \
		} \
	} while (0)

static char memory[4096];

/* All of it in a thread that ends, with what the library keeps for each thread. */
static void *use(void *library)
{
	typeof(&ibv_get_device_list) get_device_list = dlsym(library, "ibv_get_device_list");
	typeof(&ibv_free_device_list) free_device_list = dlsym(library, "ibv_free_device_list");
	typeof(&ibv_open_device) open_device = dlsym(library, "ibv_open_device");
	typeof(&ibv_close_device) close_device = dlsym(library, "ibv_close_device");
	typeof(&ibv_alloc_pd) alloc_pd = dlsym(library, "ibv_alloc_pd");
	struct ibv_mr *(*reg_mr)(struct ibv_pd *, void *, size_t, int) = dlsym(library, "ibv_reg_mr");
	struct ibv_device **list = get_device_list(NULL);
	struct ibv_context *context;
	struct ibv_pd *pd;

	CHECK(list && list[0]);
	context = open_device(list[0]);
	CHECK(context);
	free_device_list(list);
	pd = alloc_pd(context);
	CHECK(pd && reg_mr(pd, memory, sizeof(memory), 0));
	CHECK(!close_device(context));
	return NULL;
}

int main(void)
{
	void *library = dlopen("libibverbs.so.1", RTLD_NOW | RTLD_LOCAL);
	struct sigaction action;
	pthread_t thread;
	int status;
	pid_t child;

	CHECK(library);
	CHECK(!pthread_create(&thread, NULL, use, library) && !pthread_join(thread, NULL));
	CHECK(!dlclose(library));
	CHECK(dlopen("libibverbs.so.1", RTLD_NOW | RTLD_NOLOAD));
	CHECK(!sigaction(SIGSEGV, NULL, &action) && action.sa_handler != SIG_DFL);
	child = fork();
	CHECK(child >= 0);
	if (!child)
		raise(SIGSEGV);
	CHECK(waitpid(child, &status, 0) == child && WIFSIGNALED(status));
	CHECK(WTERMSIG(status) == SIGSEGV);
	printf("all as it should be\n");
	return 0;
}
