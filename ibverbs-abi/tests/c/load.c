/* Loads the library by both of its names, and looks symbols up by their versions, as NCCL does.
 * Built without the headers of rdma-core, which need not be there. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

struct ibv_device;
struct ibv_device **ibv_get_device_list(int *count);
void ibv_free_device_list(struct ibv_device **list);
const char *ibv_get_device_name(struct ibv_device *device);
const char *ibv_wc_status_str(int status);
void *rdma_create_event_channel(void);

int main(void)
{
	static const char *const names[] = {
		"ibv_get_device_list", "ibv_open_device", "ibv_create_qp", "ibv_modify_qp", "ibv_reg_mr",
	};
	void *library = dlopen("libibverbs.so.1", RTLD_NOW);
	unsigned int i;
	int count = -1;

	if (!library || dlopen("librdmacm.so.1", RTLD_NOW) != library) {
		printf("not one library: %s\n", dlerror());
		return 1;
	}
	for (i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		void *new = dlvsym(library, names[i], "IBVERBS_1.1");

		if (!new || new != dlsym(library, names[i])) {
			printf("%s is not the default of its name\n", names[i]);
			return 1;
		}
	}
	if (strcmp(ibv_wc_status_str(0), "success")) {
		printf("status 0 is %s\n", ibv_wc_status_str(0));
		return 1;
	}
	struct ibv_device **list = ibv_get_device_list(&count);
	if (!list) {
		perror("ibv_get_device_list");
		return 1;
	}
	for (i = 0; list[i]; i++)
		printf("device %s\n", ibv_get_device_name(list[i]));
	ibv_free_device_list(list);
	printf("%d devices\n", count);
	return (int)i != count;
}
