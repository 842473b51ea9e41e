// How many processor cores this process may use.
#pragma once

namespace forerun {

// Physical cores, not hyperthreads: those that its affinity, and in a container its share of processor time, allow. At least 1.
int num_cores();

}  // namespace forerun
