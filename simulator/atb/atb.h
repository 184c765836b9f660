// C functions of the simulated libatb.so, for programs that do not want to choose between its two builds. The real
// library has a C++ interface instead.
#pragma once
#include <stdint.h>

extern "C" {
struct npusim_atb_operation;
struct npusim_atb_tensor {  // int32, rows x columns, on the device
    void* data;
    int64_t rows, columns;
};

// ELEWISE_ADD. `name`: of the operator; NULL: "ElewiseOperation".
npusim_atb_operation* npusim_atb_create_add(const char* name);
// 0, or an ATB error: 1 invalid parameter, 3 internal.
int npusim_atb_setup(npusim_atb_operation* operation);
int npusim_atb_execute(npusim_atb_operation* operation, const npusim_atb_tensor* a, const npusim_atb_tensor* b,
                       const npusim_atb_tensor* out, void* workspace, uint64_t workspace_bytes, void* stream);
void npusim_atb_destroy(npusim_atb_operation* operation);

// What the program's own Probe answers; at first no, as ATB's does.
void npusim_atb_set_saving(int yes);
// Tensors written to files so far (none really is).
int npusim_atb_saved_tensors(void);
}
