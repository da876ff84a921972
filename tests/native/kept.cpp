// Tries Kept, which lends a thread its workspace.
#include <cstdio>
#include <stdexcept>

#include "memory.hpp"

namespace {

int num_alive = 0;

struct Workspace {
  Workspace() { ++num_alive; }
  ~Workspace() { --num_alive; }
  void trim() noexcept { ++num_trims; }
  int num_trims = 0;
};

void require(bool holds, const char* what) {
  if (!holds) throw std::runtime_error(what);
}

}  // namespace

int main() try {
  using dlio::Kept;
  Workspace* first = nullptr;
  {
    Kept<Workspace> outer;
    first = &*outer;
    {
      Kept<Workspace> inner;
      require(&*inner != first, "a nested one has its own workspace");
      Kept<Workspace> innermost;
      require(&*innermost != first && &*innermost != &*inner, "so has one that is nested twice");
    }
    require(num_alive == 1, "it lives as long as it is lent");
    require(outer->num_trims == 0, "its end leaves the outer one alone");
    Kept<Workspace> again;
    require(&*again != first, "one after a nested one is nested");
  }
  Kept<Workspace> next;
  require(&*next == first && next->num_trims == 1, "the next one has the thread's workspace, trimmed");
} catch (const std::runtime_error& error) {
  std::printf("broken: %s\n", error.what());
  return 1;
}
