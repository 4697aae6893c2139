/* Signals of the program are the program's: threads of the library do not take them, whatever the
 * thread has blocked that opens a device; and they catch faults of registered memory all the same. */
#include <dirent.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include "pair.h"

/* What a thread of this process has blocked, and its name. */
static unsigned long long blocked(const char *thread, char *name, int size)
{
	unsigned long long mask = 0;
	char path[300], line[200];
	FILE *file;

	snprintf(path, sizeof(path), "/proc/self/task/%s/status", thread);
	file = fopen(path, "r");
	CHECK(file);
	while (fgets(line, sizeof(line), file)) {
		if (!strncmp(line, "Name:\t", 6)) {
			line[strcspn(line, "\n")] = 0;
			snprintf(name, size, "%s", line + 6);
		}
		sscanf(line, "SigBlk: %llx", &mask);
	}
	fclose(file);
	return mask;
}

static int has(unsigned long long mask, int signal)
{
	return mask >> (signal - 1) & 1;
}

/* Looks at all threads of the library; how many there are. */
static int look(void)
{
	static const int others[] = { SIGHUP, SIGINT, SIGTERM, SIGALRM, SIGCHLD, SIGUSR1, SIGPROF,
				      SIGPIPE, SIGIO, SIGABRT };
	DIR *threads = opendir("/proc/self/task");
	struct dirent *thread;
	int count = 0;

	CHECK(threads);
	while ((thread = readdir(threads))) {
		unsigned long long mask;
		char name[32] = "";
		unsigned int i;

		if (thread->d_name[0] == '.')
			continue;
		mask = blocked(thread->d_name, name, sizeof(name));
		if (strncmp(name, "urxe-", 5))
			continue;
		for (i = 0; i < sizeof(others) / sizeof(others[0]); i++)
			if (!has(mask, others[i])) {
				fprintf(stderr, "%s takes signal %d\n", name, others[i]);
				exit(1);
			}
		/* These touch no registered memory. */
		if (strcmp(name, "urxe-slots") && strcmp(name, "urxe-links"))
			CHECK(!has(mask, SIGSEGV) && !has(mask, SIGBUS));
		count++;
	}
	closedir(threads);
	return count;
}

/* Looks until there are so many: a thread that has just been made has no name yet. */
static void look_at(int count)
{
	int i;

	for (i = 0; i < 1000 && look() < count; i++)
		usleep(5000);
	SAME(look(), count);
}

/* A signal to the process waits for the thread that asks for it; nothing else handles it. */
static void wait_for_signal(void)
{
	struct timespec limit = { .tv_sec = 20 };
	sigset_t set;

	sigemptyset(&set);
	sigaddset(&set, SIGUSR1);
	SAME(pthread_sigmask(SIG_BLOCK, &set, NULL), 0);
	SAME(kill(getpid(), SIGUSR1), 0);
	SAME(sigtimedwait(&set, NULL, &limit), SIGUSR1);
}

/* A peer writes to memory that is gone, while nobody but the library's thread looks. */
static void fault(struct ibv_context *mine, struct ibv_context *other)
{
	void *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct end a = {}, b = {};
	struct ibv_sge sge;
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE };
	struct ibv_mr *mr;

	CHECK(page != MAP_FAILED);
	make_end(&a, mine);
	make_end(&b, other);
	connect_to(a.qp, b.qp->qp_num);
	connect_to(b.qp, a.qp->qp_num);
	mr = ibv_reg_mr(b.pd, page, 4096, ALL_ACCESS);
	CHECK(mr);
	SAME(munmap(page, 4096), 0);
	sge = piece(&a, 0, 64);
	wr.wr.rdma.remote_addr = (uintptr_t)page;
	wr.wr.rdma.rkey = mr->rkey;
	SAME(post(&a, &wr), 0);
	SAME(completion(a.cq).status, IBV_WC_REM_ACCESS_ERR);
	SAME(ibv_dereg_mr(mr), 0);
	free_end(&a);
	free_end(&b);
}

int main(void)
{
	struct ibv_context *mine, *other;
	sigset_t all, before;

	mine = open_loopback();
	look_at(3);
	wait_for_signal();
	/* As programs do in threads of their own. */
	sigfillset(&all);
	SAME(pthread_sigmask(SIG_BLOCK, &all, &before), 0);
	other = open_loopback();
	SAME(pthread_sigmask(SIG_SETMASK, &before, NULL), 0);
	fault(mine, other);
	look_at(4);
	SAME(ibv_close_device(other), 0);
	SAME(ibv_close_device(mine), 0);
	printf("all as it should be\n");
	return 0;
}
