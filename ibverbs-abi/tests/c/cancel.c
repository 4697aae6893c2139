/* Threads that are cancelled (pthread_cancel(3)): those that sleep on events, as rping's does, and
 * those in the midst of any other call, which must not leave a lock behind. */
#include <pthread.h>
#include <unistd.h>

#include "pair.h"

static struct ibv_context *context;
static struct ibv_comp_channel *channel;
static struct end a, b;

/* A thread that makes calls over and over, and how often it has. */
struct caller {
	void (*call)(void);
	pthread_t thread;
	int count;
};

static void *work(void *argument)
{
	struct caller *caller = argument;

	for (;;) {
		caller->call();
		__atomic_add_fetch(&caller->count, 1, __ATOMIC_SEQ_CST);
		pthread_testcancel();
	}
	return NULL;
}

static void *cancelled(pthread_t thread)
{
	void *result;

	SAME(pthread_cancel(thread), 0);
	SAME(pthread_join(thread, &result), 0);
	return result;
}

/* Cancels a thread once it has called, at some moment of its next calls. */
static void cancel_midway(void (*call)(void), int times)
{
	int i;

	for (i = 0; i < times; i++) {
		struct caller caller = { .call = call };

		SAME(pthread_create(&caller.thread, NULL, work, &caller), 0);
		while (!__atomic_load_n(&caller.count, __ATOMIC_SEQ_CST))
			;
		usleep(17 * i % 300);
		CHECK(cancelled(caller.thread) == PTHREAD_CANCELED);
	}
}

static void *wait_for_completion(void *unused)
{
	struct ibv_cq *cq;
	void *word;

	(void)unused;
	ibv_get_cq_event(channel, &cq, &word);
	return NULL;
}

static void *wait_for_async_event(void *unused)
{
	struct ibv_async_event event;

	(void)unused;
	ibv_get_async_event(context, &event);
	return NULL;
}

static void cancel_asleep(void *(*wait)(void *))
{
	pthread_t thread;

	SAME(pthread_create(&thread, NULL, wait, NULL), 0);
	usleep(20000);
	CHECK(cancelled(thread) == PTHREAD_CANCELED);
	/* It is in vain to wait in a thread that is to end already. */
	SAME(pthread_create(&thread, NULL, wait, NULL), 0);
	CHECK(cancelled(thread) == PTHREAD_CANCELED);
}

static void write_and_poll(void)
{
	struct ibv_sge sge = piece(&a, 0, 4096);
	struct ibv_send_wr *bad, wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE };
	struct ibv_wc wc;
	int i;

	wr.send_flags = IBV_SEND_SIGNALED;
	wr.wr.rdma.remote_addr = (uintptr_t)b.buffer;
	wr.wr.rdma.rkey = b.mr->rkey;
	ibv_post_send(a.qp, &wr, &bad);
	for (i = 0; i < 4; i++)
		ibv_poll_cq(a.cq, 1, &wc);
}

static void query(void)
{
	struct ibv_port_attr port;
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;

	CHECK(ibv_get_device_guid(context->device));
	SAME(ibv_query_port(context, 1, &port), 0);
	SAME(ibv_query_qp(a.qp, &attr, 0, &init), 0);
}

static void open_and_close(void)
{
	struct ibv_context *other = open_loopback();

	SAME(ibv_close_device(other), 0);
}

static void *wait_for_channel(void *argument)
{
	struct ibv_cq *cq;
	void *word;

	ibv_get_cq_event(argument, &cq, &word);
	return NULL;
}

/* A thread that sleeps on a channel does not keep a program from closing the device. */
static void close_beside_a_sleeper(void)
{
	struct ibv_context *other = open_loopback();
	struct ibv_comp_channel *sleepers = ibv_create_comp_channel(other);
	pthread_t thread;

	CHECK(sleepers);
	SAME(pthread_create(&thread, NULL, wait_for_channel, sleepers), 0);
	usleep(20000);
	SAME(ibv_destroy_comp_channel(sleepers), 0);
	SAME(ibv_close_device(other), 0);
	CHECK(cancelled(thread) == PTHREAD_CANCELED);
}

/* Devices that are open when their thread ends stay so; a program can only have so many. */
#define TIMES 40

int main(void)
{
	struct ibv_wc wc;

	/* Packets are written there by whoever sends or receives them. */
	SAME(setenv("URXE_PCAP", "/dev/null", 1), 0);
	context = open_loopback();
	channel = ibv_create_comp_channel(context);
	CHECK(channel);
	b.cq = ibv_create_cq(context, 16, NULL, channel, 0);
	CHECK(b.cq);
	make_pair(&a, &b, context);
	/* No event is taken for nothing. */
	MINUS_ONE(ibv_get_cq_event(channel, NULL, NULL), EINVAL);
	MINUS_ONE(ibv_get_async_event(context, NULL), EINVAL);
	close_beside_a_sleeper();
	cancel_asleep(wait_for_completion);
	cancel_asleep(wait_for_async_event);
	cancel_midway(write_and_poll, TIMES);
	cancel_midway(query, TIMES);
	cancel_midway(open_and_close, TIMES);
	/* Nothing is locked, and the connection is as good as before. */
	do
		usleep(1000);
	while (ibv_poll_cq(a.cq, 1, &wc) > 0);
	SAME(ibv_req_notify_cq(b.cq, 0), 0);
	exchange(&a, &b);
	free_end(&a);
	free_end(&b);
	SAME(ibv_destroy_comp_channel(channel), 0);
	SAME(ibv_close_device(context), 0);
	printf("all as it should be\n");
	return 0;
}
