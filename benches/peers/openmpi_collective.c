/* OpenMPI's collectives on f32, timed as README.md beside this file says and as sheave times its own.

   Arguments: OPERATION BUDGET_US BYTES... Prints a line per size: the bytes, then nanoseconds per operation of every
   round, as the slowest rank saw it. `sheave bench collective` compiles and runs it. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WARM_ROUNDS = 3, ROUNDS_MIN = 5, ROUNDS_MAX = 400, LOOPED = 100, REWRITTEN_BYTES = 65536, OPERATIONS = 10 };

static int rank, ranks, elements, turn;
static float *input, *output;

/* Roots take turns, so that none of them runs ahead of the others. */
static int next_root(void) { return turn++ % ranks; }

static void all_reduce(void) { MPI_Allreduce(MPI_IN_PLACE, input, elements, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD); }

static void broadcast(void) { MPI_Bcast(input, elements, MPI_FLOAT, next_root(), MPI_COMM_WORLD); }

static void all_gather(void) {
    MPI_Allgather(input, elements, MPI_FLOAT, output, elements, MPI_FLOAT, MPI_COMM_WORLD);
}

static void reduce_scatter(void) {
    MPI_Reduce_scatter_block(input, output, elements / ranks, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
}

static void reduce(void) { MPI_Reduce(input, output, elements, MPI_FLOAT, MPI_SUM, next_root(), MPI_COMM_WORLD); }

static void gather(void) {
    MPI_Gather(input, elements, MPI_FLOAT, output, elements, MPI_FLOAT, next_root(), MPI_COMM_WORLD);
}

static void scatter(void) {
    MPI_Scatter(input, elements, MPI_FLOAT, output, elements, MPI_FLOAT, next_root(), MPI_COMM_WORLD);
}

static void all_to_all(void) {
    MPI_Alltoall(input, elements / ranks, MPI_FLOAT, output, elements / ranks, MPI_FLOAT, MPI_COMM_WORLD);
}

static void barrier(void) { MPI_Barrier(MPI_COMM_WORLD); }

static void ping_pong(void) {
    if (rank == 0) {
        MPI_Send(input, elements, MPI_FLOAT, 1, 0, MPI_COMM_WORLD);
        MPI_Recv(input, elements, MPI_FLOAT, 1, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    } else if (rank == 1) {
        MPI_Recv(input, elements, MPI_FLOAT, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        MPI_Send(input, elements, MPI_FLOAT, 0, 0, MPI_COMM_WORLD);
    }
}

/* What it is, and how many tensors of the given size its input and its output have: 0 for as many as ranks. */
static const struct operation {
    const char *name;
    void (*run)(void);
    int inputs, outputs;
} operations[OPERATIONS] = {
    {"all_reduce", all_reduce, 1, 1},         {"broadcast", broadcast, 1, 1}, {"all_gather", all_gather, 1, 0},
    {"reduce_scatter", reduce_scatter, 1, 1}, {"reduce", reduce, 1, 1},       {"gather", gather, 1, 0},
    {"scatter", scatter, 0, 1},               {"all_to_all", all_to_all, 1, 1}, {"barrier", barrier, 1, 1},
    {"ping_pong", ping_pong, 1, 1},
};

static float *tensors(size_t bytes, int count) {
    size_t all = (bytes + sizeof(float)) * (size_t)(count ? count : ranks);
    float *made = malloc(all);
    if (!made) MPI_Abort(MPI_COMM_WORLD, 1);
    memset(made, 0, all);
    return made;
}

/* Seconds per operation of one round. */
static double one_round(const struct operation *operation, size_t bytes, size_t length, int number) {
    int looped = bytes >= REWRITTEN_BYTES ? 1 : LOOPED;
    if (looped == 1)
        for (size_t at = 0; at < length; at++) input[at] = 1.0f + (float)number;
    MPI_Barrier(MPI_COMM_WORLD);
    double begun = MPI_Wtime();
    for (int count = 0; count < looped; count++) operation->run();
    return (MPI_Wtime() - begun) / looped;
}

static void measure(const struct operation *operation, size_t bytes, double budget) {
    double times[ROUNDS_MAX], last = 0;
    size_t length = bytes / sizeof(float) * (size_t)(operation->inputs ? operation->inputs : ranks);
    elements = (int)(bytes / sizeof(float));
    input = tensors(bytes, operation->inputs);
    output = tensors(bytes, operation->outputs);
    for (int number = 0; number < WARM_ROUNDS; number++) {
        double begun = MPI_Wtime();
        one_round(operation, bytes, length, number);
        last = MPI_Wtime() - begun;
    }
    double fitting = budget / last;
    int rounds = fitting < ROUNDS_MIN ? ROUNDS_MIN : fitting > ROUNDS_MAX ? ROUNDS_MAX : (int)fitting;
    MPI_Bcast(&rounds, 1, MPI_INT, 0, MPI_COMM_WORLD);
    for (int number = 0; number < rounds; number++) times[number] = one_round(operation, bytes, length, number);
    MPI_Reduce(rank ? times : MPI_IN_PLACE, times, rounds, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
    if (rank == 0) {
        printf("%zu", bytes);
        for (int number = 0; number < rounds; number++) printf(" %.0f", times[number] * 1e9);
        printf("\n");
        fflush(stdout);
    }
    free(input);
    free(output);
}

int main(int count, char **arguments) {
    const struct operation *chosen = NULL;
    MPI_Init(&count, &arguments);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    for (int index = 0; index < OPERATIONS && count > 2; index++)
        if (strcmp(operations[index].name, arguments[1]) == 0) chosen = &operations[index];
    if (!chosen) MPI_Abort(MPI_COMM_WORLD, 2);
    for (int index = 3; index < count; index++)
        measure(chosen, strtoull(arguments[index], NULL, 10), atof(arguments[2]) / 1e6);
    MPI_Finalize();
    return 0;
}
