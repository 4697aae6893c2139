/* Threads that sleep in ibv_get_cq_event, and are woken by packets: to and fro, several at once, with
 * signals, and where one is cancelled or sleeps in poll(2) instead. */
#define _GNU_SOURCE
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include "pair.h"

#define ROUNDS 3000

/* An end that sleeps. */
struct sleeper {
	struct end end;
	struct ibv_context *context;
	struct ibv_comp_channel *channel;
};

static struct sleeper one, two;
static volatile int signals;
/* How many calls of ibv_get_cq_event have begun. */
static volatile int begun;

static void make_sleeper(struct sleeper *sleeper)
{
	sleeper->context = open_loopback();
	sleeper->channel = ibv_create_comp_channel(sleeper->context);
	CHECK(sleeper->channel);
	sleeper->end.cq = ibv_create_cq(sleeper->context, 64, sleeper, sleeper->channel, 0);
	make_end(&sleeper->end, sleeper->context);
}

static void free_sleeper(struct sleeper *sleeper)
{
	free_end(&sleeper->end);
	SAME(ibv_destroy_comp_channel(sleeper->channel), 0);
	SAME(ibv_close_device(sleeper->context), 0);
}

static int take_event(struct sleeper *sleeper)
{
	struct ibv_cq *cq;
	void *word;

	begun++;
	if (ibv_get_cq_event(sleeper->channel, &cq, &word))
		return -1;
	CHECK(cq == sleeper->end.cq && word == sleeper);
	ibv_ack_cq_events(cq, 1);
	return 0;
}

/* Sleeps until there is a completion; as ibv_rc_pingpong does it. */
static struct ibv_wc sleep_until_done(struct sleeper *sleeper)
{
	struct ibv_wc wc;

	for (;;) {
		if (ibv_poll_cq(sleeper->end.cq, 1, &wc) == 1)
			break;
		SAME(ibv_req_notify_cq(sleeper->end.cq, 0), 0);
		if (ibv_poll_cq(sleeper->end.cq, 1, &wc) == 1)
			break;
		SAME(take_event(sleeper), 0);
	}
	SAME(wc.status, IBV_WC_SUCCESS);
	return wc;
}

static void send_one(struct sleeper *from, int signaled)
{
	struct ibv_sge sge = piece(&from->end, 0, 8);
	struct ibv_send_wr *bad, wr = { .wr_id = 7, .sg_list = &sge, .num_sge = 1,
					.opcode = IBV_WR_SEND };

	wr.send_flags = signaled ? IBV_SEND_SIGNALED : 0;
	SAME(ibv_post_send(from->end.qp, &wr, &bad), 0);
}

/* Sends a message, and polls until it has arrived. */
static void send_and_poll(struct sleeper *from)
{
	send_one(from, 1);
	while (success(from->end.cq).opcode != IBV_WC_SEND)
		;
}

static void await_message(struct sleeper *sleeper)
{
	while (sleep_until_done(sleeper).opcode != IBV_WC_RECV)
		;
	post_receive(&sleeper->end, 1, 512, 64);
}

static void *answer(void *argument)
{
	int i;

	for (i = 0; i < ROUNDS; i++) {
		await_message(argument);
		send_one(argument, i % 8 == 0);
	}
	return NULL;
}

static void to_and_fro(void)
{
	pthread_t thread;
	int i;

	SAME(pthread_create(&thread, NULL, answer, &two), 0);
	for (i = 0; i < ROUNDS; i++) {
		send_one(&one, i % 8 == 0);
		await_message(&one);
	}
	SAME(pthread_join(thread, NULL), 0);
	/* The peer's last messages are answered for. */
	usleep(20000);
}

static void note_signal(int number)
{
	(void)number;
	signals++;
}

static void handle(int number, int flags)
{
	struct sigaction action = { .sa_handler = note_signal, .sa_flags = flags };

	SAME(sigaction(number, &action, NULL), 0);
}

static void *take_events(void *argument)
{
	struct sleeper *sleeper = argument;

	return (void *)(intptr_t)(take_event(sleeper) ? errno : 0);
}

/* A thread that sleeps until there is an event. */
static pthread_t begin_to_sleep(struct sleeper *sleeper)
{
	struct pollfd fd = { .fd = sleeper->channel->fd, .events = POLLIN };
	struct ibv_wc wc;
	pthread_t thread;
	int before;

	while (ibv_poll_cq(sleeper->end.cq, 1, &wc))
		;
	/* Events of what was polled before they were taken. */
	while (poll(&fd, 1, 2) == 1)
		SAME(take_event(sleeper), 0);
	before = begun;
	SAME(ibv_req_notify_cq(sleeper->end.cq, 0), 0);
	SAME(pthread_create(&thread, NULL, take_events, sleeper), 0);
	while (begun == before)
		usleep(100);
	usleep(5000);
	return thread;
}

static intptr_t result_of(pthread_t thread)
{
	void *result;

	SAME(pthread_join(thread, &result), 0);
	return (intptr_t)result;
}

/* What a signal does to a thread that sleeps: what it does to a read(2). */
static void with_signal(int number, int ends)
{
	pthread_t thread = begin_to_sleep(&one);
	int before = signals;
	void *result;

	SAME(pthread_kill(thread, number), 0);
	while (signals == before)
		usleep(100);
	if (ends) {
		/* One that comes before the thread is asleep ends nothing. */
		while (pthread_tryjoin_np(thread, &result) == EBUSY) {
			SAME(pthread_kill(thread, number), 0);
			usleep(2000);
		}
		SAME((intptr_t)result, EINTR);
		thread = begin_to_sleep(&one);
	}
	usleep(5000);
	send_and_poll(&two);
	SAME(result_of(thread), 0);
	await_message(&one);
}

/* The place of a thread that is cancelled in its sleep is taken by the next one. */
static void cancel_one(void)
{
	pthread_t thread = begin_to_sleep(&one);
	void *result;

	SAME(pthread_cancel(thread), 0);
	SAME(pthread_join(thread, &result), 0);
	CHECK(result == PTHREAD_CANCELED);
	thread = begin_to_sleep(&one);
	send_and_poll(&two);
	SAME(result_of(thread), 0);
	await_message(&one);
}

/* A program that sleeps in ibv_get_cq_event at one time, and in poll(2) at another. */
static void sleep_in_poll(void)
{
	struct pollfd fd = { .fd = one.channel->fd, .events = POLLIN };
	struct ibv_wc wc;
	int i;

	for (i = 0; i < 20; i++) {
		while (ibv_poll_cq(one.end.cq, 1, &wc))
			;
		while (poll(&fd, 1, 2) == 1)
			SAME(take_event(&one), 0);
		SAME(ibv_req_notify_cq(one.end.cq, 0), 0);
		SAME(ibv_poll_cq(one.end.cq, 1, &wc), 0);
		SAME(poll(&fd, 1, 0), 0);
		send_and_poll(&two);
		SAME(poll(&fd, 1, 10000), 1);
		SAME(take_event(&one), 0);
		await_message(&one);
	}
}

static void *await_one(void *argument)
{
	await_message(argument);
	return NULL;
}

/* Two threads sleep on channels of one device; each is woken by its message. */
static void two_of_a_device(void)
{
	struct sleeper other = { .context = one.context };
	struct sleeper *sleepers[] = { &one, &other }, peer;
	pthread_t threads[2];
	int i, j;

	other.channel = ibv_create_comp_channel(other.context);
	other.end.cq = ibv_create_cq(other.context, 64, &other, other.channel, 0);
	make_end(&other.end, other.context);
	make_sleeper(&peer);
	connect_to(other.end.qp, peer.end.qp->qp_num);
	connect_to(peer.end.qp, other.end.qp->qp_num);
	post_receive(&other.end, 1, 512, 64);
	for (i = 0; i < 50; i++) {
		for (j = 0; j < 2; j++)
			SAME(pthread_create(&threads[j], NULL, await_one, sleepers[j]), 0);
		usleep(i % 3 * 500);
		for (j = 0; j < 2; j++)
			send_and_poll((i + j) % 2 ? &two : &peer);
		for (j = 0; j < 2; j++)
			SAME(pthread_join(threads[j], NULL), 0);
	}
	free_end(&other.end);
	SAME(ibv_destroy_comp_channel(other.channel), 0);
	free_sleeper(&peer);
}

int main(void)
{
	int i;

	/* What is never woken ends here. */
	alarm(100);
	make_sleeper(&one);
	make_sleeper(&two);
	connect_to(one.end.qp, two.end.qp->qp_num);
	connect_to(two.end.qp, one.end.qp->qp_num);
	for (i = 0; i < 4; i++) {
		post_receive(&one.end, 1, 512, 64);
		post_receive(&two.end, 1, 512, 64);
	}
	to_and_fro();
	handle(SIGUSR1, SA_RESTART);
	with_signal(SIGUSR1, 0);
	/* As it differs, so does what each of them does. */
	handle(SIGUSR2, 0);
	to_and_fro();
	with_signal(SIGUSR2, 1);
	with_signal(SIGUSR1, 0);
	handle(SIGUSR1, 0);
	to_and_fro();
	with_signal(SIGUSR1, 1);
	cancel_one();
	two_of_a_device();
	sleep_in_poll();
	to_and_fro();
	free_sleeper(&one);
	free_sleeper(&two);
	printf("all as it should be\n");
	return 0;
}
