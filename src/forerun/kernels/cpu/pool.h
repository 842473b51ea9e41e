// Threads that share the pieces of a job, and their scratch memory. A piece's result must not depend on who computes it.
#pragma once
#include <cstddef>

namespace forerun {

// Calls call(job, i) for every i < pieces and returns when all are done. The calling thread takes pieces, too.
void run_pieces(size_t pieces, void (*call)(const void* job, size_t piece), const void* job);

// At least this many bytes of the calling thread, aligned to 64; valid until its next call.
void* scratch(size_t bytes);

// The same, apart from it: for what a thread shares with the pieces that it runs, some of which ask for scratch on the same thread.
void* shared_scratch(size_t bytes);

int num_threads();
void set_num_threads(int threads);

}  // namespace forerun
