#include "record/ring.h"
