#include "../cuda_shim.h"
