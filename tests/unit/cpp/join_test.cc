#include "world_of_threads.h"
