/* A program whose standard error leads nowhere: its log is lost, and nothing else. */
#include <signal.h>
#include <unistd.h>

#include "pair.h"

int main(void)
{
	struct end a = {}, b = {};
	struct ibv_context *context;
	int ends[2], i;

	signal(SIGPIPE, SIG_IGN);
	SAME(setenv("URXE_LOG", "trace", 1), 0);
	SAME(pipe(ends), 0);
	SAME(close(ends[0]), 0);
	SAME(dup2(ends[1], STDERR_FILENO), STDERR_FILENO);
	context = open_loopback();
	make_pair(&a, &b, context);
	/* Long enough for the threads of the library to have something to tell. */
	for (i = 0; i < 10; i++) {
		exchange(&a, &b);
		usleep(5000);
	}
	SAME(ibv_destroy_qp(NULL), EINVAL);
	free_end(&a);
	free_end(&b);
	SAME(ibv_close_device(context), 0);
	printf("all as it should be\n");
	return 0;
}
