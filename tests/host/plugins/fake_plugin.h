// A shared library with the door of a plugin and nothing behind it. Before it is included:
// FAKE_ABI, what note and door say; FAKE_DOOR_ABI, FAKE_DOOR_FAMILY and FAKE_DOOR_SIZE where the
// door says something else; FAKE_OPEN, what open() gives.
#include "atelier/plugin.h"

#ifndef FAKE_DOOR_ABI
#define FAKE_DOOR_ABI FAKE_ABI
#endif
#ifndef FAKE_DOOR_FAMILY
#define FAKE_DOOR_FAMILY "fake"
#endif
#ifndef FAKE_DOOR_SIZE
#define FAKE_DOOR_SIZE sizeof(AtelierPlugin)
#endif

namespace {

struct Note {
  uint32_t name_size, description_size, type;
  char name[8];
  char description[(sizeof(FAKE_ABI "\0"
                                    "fake"
                                    "\0"
                                    "0.1") +
                    3) /
                   4 * 4];
};
__attribute__((section(".note.atelier,\"a\",@note#"), used, aligned(4)))
const Note note = {8,
                   sizeof(FAKE_ABI "\0"
                                   "fake"
                                   "\0"
                                   "0.1"),
                   1, "atelier",
                   FAKE_ABI
                   "\0"
                   "fake"
                   "\0"
                   "0.1"};

#ifndef FAKE_OPEN
#define FAKE_OPEN open_nothing
void* open_nothing(char* message, size_t size) noexcept {
  snprintf(message, size, "there is nothing\nbehind this door");
  return nullptr;
}
#endif

}  // namespace

extern "C" ATELIER_API const AtelierPlugin* atelier_plugin() noexcept {
  static const AtelierPlugin plugin = {ATELIER_PLUGIN_MAGIC, FAKE_DOOR_SIZE, FAKE_DOOR_ABI,
                                       FAKE_DOOR_FAMILY,     "0.1",          FAKE_OPEN};
  return &plugin;
}
