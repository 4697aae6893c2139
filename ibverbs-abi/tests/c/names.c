/* Prints the names and numbers of all values, and of some that are none: tests/data/names.txt has
 * what the real libraries of rdma-core 44 print. */
#include <stdio.h>

#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>

int main(void)
{
	int i;

	for (i = -2; i < 32; i++) {
		printf("event %d: %s\n", i, ibv_event_type_str(i));
		printf("node %d: %s\n", i, ibv_node_type_str(i));
		printf("port %d: %s\n", i, ibv_port_state_str(i));
		printf("status %d: %s\n", i, ibv_wc_status_str(i));
		printf("CM event %d: %s\n", i, rdma_event_str(i));
		printf("rate %d: %d times 2.5 Gb/s, %d Mb/s\n", i, ibv_rate_to_mult(i),
		       ibv_rate_to_mbps(i));
	}
	for (i = -2; i < 1000; i++)
		if (mult_to_ibv_rate(i) != IBV_RATE_MAX)
			printf("%d times 2.5 Gb/s: rate %d\n", i, mult_to_ibv_rate(i));
	for (i = -2; i < 3000000; i++)
		if (mbps_to_ibv_rate(i) != IBV_RATE_MAX)
			printf("%d Mb/s: rate %d\n", i, mbps_to_ibv_rate(i));
	return 0;
}
