// A function for AWS's own Node client: handler.handle, and handler.stream.
import { randomBytes } from "node:crypto";
import { appendFileSync, existsSync } from "node:fs";

class Unlucky extends Error {
    name = "Unlucky";
}

function effect(key) {
    const nonce = randomBytes(6).toString("hex");
    appendFileSync("effects", `${key} ${nonce}\n`);
    return nonce;
}

export const handle = async (event, context) => {
    if (event.Records) {
        event.Records.forEach((record) => effect(JSON.parse(record.body).id));
        return { batchItemFailures: [] };
    }
    if (event.requestContext) {
        return { statusCode: 201, headers: { "X-Run": effect(JSON.parse(event.body).id) }, body: "grüße" };
    }
    const run = effect(event.id);
    if (existsSync("fails")) {
        throw new Unlucky(run);
    }
    return { run, text: "grüße", id: context.awsRequestId, left: context.getRemainingTimeInMillis() > 0 };
};

export const stream = globalThis.awslambda?.streamifyResponse(async (event, to) => {
    to.write(`first ${effect(event.id)} `);
    await new Promise((done) => setTimeout(done, 50));
    to.write("second");
    to.end();
});
